"""Define the commands `whiten eval` and `whiten sweep`; the group `eval` is here."""

from whiten_evaluation.commands.classification import classification
from whiten_evaluation.commands.retrieval import retrieval
from whiten_evaluation.commands.sts import sts
from whiten_runtime.commands.help import group


@group(
    "eval",
    section="Measure",
    examples=(
        "whiten eval sts bundles/minilm --data sts/",
        "whiten eval retrieval bundles/minilm --data beir/scifact/",
    ),
)
def evaluate() -> None:
    """Measure search, similarity and classification by bundles, on your files."""


for _command in (sts, retrieval, classification):
    evaluate.add_command(_command)
