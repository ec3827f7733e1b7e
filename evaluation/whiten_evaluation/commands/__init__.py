"""Define the commands `whiten eval` and `whiten sweep`; the group `eval` is here."""

from whiten_evaluation.commands.eval import classification, retrieval, sts
from whiten_runtime.commands.console import group


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
