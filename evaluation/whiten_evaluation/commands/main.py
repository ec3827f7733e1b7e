"""Implement `whiten eval`: the papers' protocols on bundles."""

from whiten_evaluation.commands.classification import classification
from whiten_evaluation.commands.codes import codes
from whiten_evaluation.commands.compare import compare
from whiten_evaluation.commands.isotropy import isotropy
from whiten_evaluation.commands.rte import rte
from whiten_evaluation.commands.sts import sts
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
    """Measure bundles by the papers' protocols, on files of yours."""


for _command in (sts, classification, rte, isotropy, compare, codes):
    evaluate.add_command(_command)
