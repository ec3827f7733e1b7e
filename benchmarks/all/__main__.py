"""Measure what the README and the guides state of speed, size and memory, and write it into them.

    python -m benchmarks.all --sts DIR --prepare         # installs and exports; may run beside other work
    python -m benchmarks.all --sts DIR                   # measures, with nothing else running: 20 minutes
    python -m benchmarks.all --write-tables              # writes readme.json's figures into the pages

The first needs the package index; it makes an environment for each of the other engines, 4 GB in all. The second
prepares what is not ready. Each figure is of one machine and one day, and stands in readme.json with the processor, the
date, the versions and the single rounds.
"""

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.all.pages import rewritten
from benchmarks.all.prepare import ROOT
from benchmarks.peers.report import write_report
from benchmarks.workloads import ONE, SHORT
from whiten_runtime.errors import DataError, WhitenError

HERE = Path(__file__).parent
FIGURES = HERE.parent / "readme.json"
MODELS = ("minilm", "bert-base")
FEWEST = SHORT + ONE


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.all", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", help="sentences, one a line, or .csv, .tsv, .jsonl, .parquet; default STS-B's")
    parser.add_argument("--column", help="column of the sentences")
    parser.add_argument("--sts", type=Path, metavar="DIR", help="the similarity tasks, as for `whiten eval sts`")
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {','.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the engines at most")
    parser.add_argument(
        "--minutes", type=float, default=18, help="no round begins later; each model has three at least"
    )
    parser.add_argument("--quick", action="store_true", help="a dry run: few texts, one round; not for the pages")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "whiten-benchmarks")
    parser.add_argument("--out", type=Path, default=FIGURES)
    step = parser.add_mutually_exclusive_group()
    step.add_argument("--prepare", action="store_true", help="only install and export")
    step.add_argument("--write-tables", action="store_true", help="only write the pages, from the file --out")
    found = parser.parse_args(arguments)
    if unknown := sorted({*found.models.split(",")} - {*MODELS}):
        parser.error(f"--models {','.join(unknown)}: wanted some of {','.join(MODELS)}")
    if found.rounds < 1:
        parser.error(f"--rounds {found.rounds}: wanted at least 1")
    if not found.out.parent.is_dir():
        parser.error(f"--out {found.out}: there is no folder {found.out.parent}")
    if not found.write_tables and found.texts is None and found.sts is None:
        parser.error("no texts: name --texts FILE, or --sts DIR with the similarity tasks")
    return found


def sentences(texts: str | None, column: str | None, data: Path | None) -> tuple[list[str], str]:
    """Return the distinct sentences to embed, and where they come from.

    Raises:
        WhitenError: texts or tasks are missing, or too few.
    """
    from benchmarks.all.measure import TASKS
    from whiten_evaluation.tasks.sts_files import read_sts
    from whiten_runtime.files.texts import read_texts

    tasks = read_sts(data, TASKS) if data is not None else None
    if tasks is not None and tasks.absent:
        raise DataError(f"{data} has no {', '.join(tasks.absent)}, which the README's average needs")
    if texts is None:
        assert tasks is not None
        found, source = [*dict.fromkeys(tasks.tasks[0].texts)], tasks.tasks[0].name
    else:
        found, source = [*dict.fromkeys(read_texts(texts, column))], Path(texts).name
    if len(found) < FEWEST:
        raise DataError(f"{source} has {len(found):,} distinct sentences; wanted at least {FEWEST:,}")
    return found, source


def describe(texts: list[str], source: str, ready: dict[str, Any], quick: bool) -> dict[str, Any]:
    """Return the head of the JSON file: when, where and with what."""
    from benchmarks.peers.__main__ import place
    from whiten_runtime.ort.processor import processor

    unit = processor()
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    names = ("whiten", "onnxruntime", "numpy", "torch", "transformers")
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "quick": quick,
        "processor": {"model": unit.model, "features": unit.features, "threads": unit.threads, "place": place()},
        "versions": {"python": platform.python_version(), "commit": commit.stdout.strip()}
        | {name: version(name) for name in names},
        "peers": ready["versions"],
        "texts": {"source": source, "distinct": len(texts)},
    }


def write_tables(file: Path) -> int:
    """Write the figures of a file into the pages, and say which changed; return the exit code."""
    try:
        pages = rewritten(ROOT, json.loads(file.read_text("utf-8")))
    except FileNotFoundError:
        print(f"error: {file} is not there; python -m benchmarks.all --sts DIR writes it", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path, text in pages.items():
        if text != path.read_text("utf-8"):
            path.write_text(text, "utf-8")
            print(path.relative_to(ROOT))
    peers = ROOT / "benchmarks" / "peers"
    write_report(json.loads((peers / "figures.json").read_text("utf-8")), peers)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or write the pages; return the exit code."""
    chosen = parse(arguments)
    if chosen.write_tables:
        return write_tables(chosen.out)
    from benchmarks.all.measure import measure
    from benchmarks.all.prepare import prepare

    models, cache = chosen.models.split(","), chosen.cache.resolve()
    try:
        texts, source = sentences(chosen.texts, chosen.column, chosen.sts)
    except WhitenError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    ready = prepare(models, cache, texts)
    if chosen.prepare:
        return 0
    found = describe(texts, source, ready, chosen.quick)
    found |= measure(models, cache, texts, chosen.sts, chosen.rounds, chosen.quick, chosen.minutes, ready)
    chosen.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(chosen.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
