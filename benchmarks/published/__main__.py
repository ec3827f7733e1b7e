"""Compare every row of the catalogue with sentence-transformers, in each precision.

Run as `python -m benchmarks.published measure OUT.json [NAME ...]`, with each version of transformers, and then
`python -m benchmarks.published table NEWER.json OLDER.json`, which prints the table.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec

from benchmarks.published.measure import PRECISIONS, Figures

NOTES = {
    "xlm": "The tokenizer of XLM in transformers 4 gives token types, for which the network adds the embedding of "
    "word 0 to every token; transformers 5 and this project give none, so sentence-transformers with transformers 4 "
    "has other vectors."
}
"""Why rows differ, below the table where they do."""

_DIFFERENT = 1e-4


class Document(msgspec.Struct, frozen=True):
    """Holds the figures of all rows with one version of transformers."""

    versions: dict[str, str]
    rows: tuple[Figures, ...]


def measure_all(out: Path, names: list[str], precisions: list[str]) -> None:
    """Measure the rows of these names, or all, and write their figures."""
    from importlib.metadata import version

    import huggingface_hub.constants

    from benchmarks.published.measure import measure
    from support.traces import remembering
    from whiten_export.sources.networks import pytorch
    from whiten_models.catalogue import catalogue

    huggingface_hub.constants.HF_HUB_OFFLINE = True
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        traced = remembering(pytorch.trace, Path(folder) / "traces")  # the same in each precision
        setattr(pytorch, "trace", traced)  # noqa: B010
        for entry in catalogue():
            if not names or entry.name in names:
                rows.append(measure(entry, Path(folder), precisions))
                print(f"{len(rows)} {entry.name}: {rows[-1].failure or rows[-1].cosines}", file=sys.stderr)
                versions = {name: version(name) for name in ("transformers", "sentence-transformers", "torch")}
                out.write_bytes(msgspec.json.encode(Document(versions, tuple(rows))))


def print_table(newer: Document, older: Document) -> None:
    """Print a row for each name: figures with the newer version, and whether the older one gives the same."""
    said = ", ".join(f"{name} {found}" for name, found in newer.versions.items())
    print(f"Worst cosine and worst difference of a coordinate over the norm. {said}.")
    print(f"Last column: fp32 with transformers {older.versions['transformers']}.\n")
    heads = [f"{precision}: 1 - cosine, difference" for precision in PRECISIONS]
    last = f"transformers {older.versions['transformers']}"
    print("| " + " | ".join(["model", "modules", "prompts", "beside", *heads, last]) + " |")
    print("|---" * (len(heads) + 5) + "|")
    known = {row.name: row for row in older.rows}
    for row in newer.rows:
        cells = [_cell(row, precision) for precision in PRECISIONS]
        before = known.get(row.name)
        again = "-" if before is None else before.failure or _cell(before, "fp32")
        if row.failure:
            cells = [row.failure, "", ""]
        print("| " + " | ".join([row.name, row.modules, str(row.prompts or ""), row.reference, *cells, again]) + " |")
    for row in older.rows:
        if row.name in NOTES and 1 - row.cosines.get("fp32", 1) > _DIFFERENT:
            print(f"\n{row.name}: {NOTES[row.name]}")


def _cell(row: Figures, precision: str) -> str:
    if precision in row.refused:
        return "refused by the gate" if "too much accuracy" in row.refused[precision] else row.refused[precision]
    if precision not in row.cosines:
        return "-"
    return f"{1 - row.cosines[precision]:.1e}, {row.differences[precision]:.1e}"


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published", description=__doc__)
    parser.add_argument("what", choices=["measure", "table"])
    parser.add_argument("first", type=Path)
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="Measure this one; all by default.")
    arguments = parser.parse_args()
    if arguments.what == "measure":
        measure_all(arguments.first, arguments.rest, arguments.precision or list(PRECISIONS))
        return
    newer, older = (
        msgspec.json.decode(Path(file).read_bytes(), type=Document) for file in (arguments.first, *arguments.rest)
    )
    print_table(newer, older)


if __name__ == "__main__":
    main()
