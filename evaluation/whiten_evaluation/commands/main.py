"""Implement `whiten eval`: the papers' protocols on bundles."""

import click

from whiten_evaluation.commands.classification import classification
from whiten_evaluation.commands.codes import codes
from whiten_evaluation.commands.compare import compare
from whiten_evaluation.commands.isotropy import isotropy
from whiten_evaluation.commands.rte import rte
from whiten_evaluation.commands.sts import sts


@click.group("eval")
def evaluate() -> None:
    """Measure bundles by the papers' protocols, on files of yours."""


for _command in (sts, classification, rte, isotropy, compare, codes):
    evaluate.add_command(_command)
