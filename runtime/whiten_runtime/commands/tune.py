"""Implement `whiten tune`: measure provider, threads and token budget for bundles on this machine."""

from pathlib import Path

import click

from whiten_runtime.commands.console import (
    ConsoleReporter,
    json_option,
    one_line_errors,
    print_json,
    quiet_option,
    say,
    table,
)
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.files.replacing import check_file_place
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.opened.tuned import Choice, choice_path, write_choice
from whiten_runtime.opened.tuner import best
from whiten_runtime.opened.tuner import tune as tune_bundle


@command(
    section="Check",
    examples=(
        "whiten tune bundles/minilm-l0-l1",
        "whiten tune bundles/minilm-l0-l1 bundles/minilm-l0-l1-int8 --seconds 120",
    ),
)
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, required=True, type=click.Path())
@heading("Measurement")
@option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    default=40.0,
    show_default=True,
    help="Time to measure. It is for all bundles together; opening them comes on top.",
)
@option(
    "--bf16",
    is_flag=True,
    help="Choose bfloat16 if it is fastest. Vectors then agree with those of float32 to a cosine of .9999.",
)
@heading("Output")
@json_option
@quiet_option
@one_line_errors
def tune(bundles: tuple[str, ...], seconds: float, bf16: bool, as_json: bool) -> None:
    """Measure how each bundle is fastest here, and write that down.

    It is written to BUNDLE.tuned.json beside the bundle. Compares providers, threads and token budgets on short
    texts and on texts of mixed lengths, in turn, while nothing else should run. Encoder(path, tuned=True) and
    whiten embed --tuned then run the bundle so; on another machine they refuse.
    """
    reporter = ConsoleReporter()
    paths = list(map(locate_bundle, dict.fromkeys(bundles)))
    for path in paths:
        check_file_place(choice_path(path), "another place for the bundle")
    choices = {path: tune_bundle(path, seconds / len(paths), bf16, reporter) for path in paths}
    files = {path: write_choice(path, choice) for path, choice in choices.items()}
    if as_json:
        print_json({"bundles": {str(path): choice for path, choice in choices.items()}})
    else:
        click.echo(_table(choices))
    for path, choice in choices.items():
        setting = choice.setting
        say(
            f"{path}: --device {setting.provider}, {setting.threads} threads, {setting.token_budget} tokens a run; "
            f"wrote {files[path]}"
        )
        if not bf16 and (faster := best(choice.measured, True)).provider.endswith("bf16"):
            say(f"{path}: {faster.provider} is faster, at a cosine of .9999 to float32; --bf16 chooses it")


def _table(choices: dict[Path, Choice]) -> str:
    header = ("bundle", "provider", "threads", "tokens a run", "short texts/s", "mixed texts/s", "ratio", "")
    rows = []
    for path, choice in choices.items():
        for number, rate in enumerate(choice.measured):
            one = rate.setting
            remarks = (["default"] if not number else []) + (["chosen"] if one == choice.setting else [])
            cells = (one.provider, str(one.threads), str(one.token_budget), f"{rate.short:.1f}", f"{rate.mixed:.1f}")
            rows.append((path.name, *cells, f"{rate.ratio:.2f}", ", ".join(remarks)))
    return table(header, rows)
