"""Define the commands `whiten eval` and `whiten sweep`; the group `eval` is here."""

from whiten_evaluation.commands.classification import classification, rte
from whiten_evaluation.commands.isotropy import isotropy
from whiten_evaluation.commands.retrieval import retrieval
from whiten_evaluation.commands.sts import codes, compare, sts
from whiten_runtime.commands.help import group


@group(
    "eval",
    section="Evaluate",
    examples=(
        "whiten eval sts bundles/minilm-l0-l1 --data sts/",
        "whiten eval isotropy bundles/minilm-l0-l1 --input texts.txt",
    ),
)
def evaluate() -> None:
    """Measure bundles by the papers' protocols, on your files."""


for _command in (sts, retrieval, classification, rte, isotropy, compare, codes):
    evaluate.add_command(_command)
