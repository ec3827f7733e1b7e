"""Write the figures of docs/concepts: docs/images/*.svg.

    python tools/site/pictures.py           # writes them; the clouds need the extra 'export' and about a minute
    python tools/site/pictures.py --check   # compares those that need no model, and exits with 1 if one differs

The clouds are drawn from vectors that onnxruntime computes, whose last bits differ between processors; a test compares
their numbers.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import diagrams

IMAGES = Path(__file__).parents[2] / "docs" / "images"

DIAGRAMS: dict[str, Callable[[], str]] = {
    "graph.svg": diagrams.graph,
    "proof.svg": diagrams.proof,
    "space.svg": diagrams.space,
}


def clouds() -> dict[str, str]:
    """Return the figures of vectors by the names of their files."""
    from clouds import cloud, cosines, measure, spectrum

    measured = measure()
    return {"cloud.svg": cloud(measured), "cosines.svg": cosines(measured), "spectrum.svg": spectrum(measured)}


def main(arguments: Sequence[str]) -> int:
    """Write all figures; with --check, compare the diagrams instead.

    Returns:
        The exit code.
    """
    if list(arguments) not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    drawn = {name: draw() for name, draw in DIAGRAMS.items()} | ({} if arguments else clouds())
    for name, content in drawn.items():
        file = IMAGES / name
        if not arguments:
            file.write_text(content, "utf-8")
        elif not file.is_file() or file.read_text("utf-8") != content:
            print(f"docs/images/{name} is out of date; run python tools/site/pictures.py", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
