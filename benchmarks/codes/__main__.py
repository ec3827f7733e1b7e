"""Measure codes of a few bytes: similarity over bytes, recall in domain and on other texts, and the speed of search.

whiten-export minilm --layers 1 --out L1        # and others; --whitening pca --beta 0 for a tuned top layer
python -m benchmarks.codes L6 L1-L6 L1 L0 --data DIR --corpora captions.txt news.txt ... --chart chart.png > table.md

Run with nothing else running. Coders of the recall are of the first bundle, centred on 8,000 sentences of the first
corpus: the 10 nearest of 300 other sentences among the rest of a corpus, by float32 and by codes.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.codes.recall import recall_lines
from benchmarks.codes.speed import speed_lines
from benchmarks.machine import made_by
from whiten_evaluation.drawing import png
from whiten_evaluation.embedding import WhiteningSource, embed_texts
from whiten_evaluation.tasks.codes import CodeScore, score_codes
from whiten_evaluation.tasks.codes_figure import codes_figure
from whiten_evaluation.tasks.sts_files import StsData, read_sts


def main() -> None:
    """Print the tables, and draw the scores."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codes", description=__doc__)
    parser.add_argument("bundles", nargs="*", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--corpora", nargs="+", type=Path, default=[])
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--codes", type=int, default=1_000_000, help="codes to search; 0 leaves the speed out")
    arguments = parser.parse_args()
    print(made_by("codes", "scores and recall once, speed as medians of 5 interleaved rounds") + "\n")
    if arguments.data is not None:
        data = read_sts(arguments.data)
        found = [(bundle.name, scored(bundle, data)) for bundle in arguments.bundles]
        if arguments.chart is not None:
            arguments.chart.write_bytes(png(codes_figure(found)))
        print("\n".join(score_lines(found)) + "\n", flush=True)
    if arguments.corpora:
        with TemporaryDirectory() as folder:
            for line in recall_lines(arguments.bundles[0], arguments.corpora, Path(folder)):
                print(line, flush=True)
        print()
    if arguments.codes:
        print("\n".join(speed_lines(arguments.codes)))


def scored(bundle: Path, data: StsData) -> tuple[CodeScore, ...]:
    """Return the scores of a bundle's codes."""
    return score_codes(bundle, data, embed_texts(bundle, data.texts, WhiteningSource()), bits=(8, 4, 2, 1))


def score_lines(found: Sequence[tuple[str, Sequence[CodeScore]]]) -> Iterator[str]:
    """Yield a table: a line for each kind of code, a column for each bundle; those of the front are bold.

    A kind in all dimensions has a byte or two less where vectors vary along fewer axes.
    """
    betas = {name: next((one.beta for one in scores if one.beta is not None), None) for name, scores in found}
    yield "| code | dims | bytes | " + " | ".join(f"{name}, β = {betas[name]:g}" for name, _ in found) + " |"
    yield "|---" * (3 + len(found)) + "|"
    columns = [_by_kind(scores) for _, scores in found]
    for key, one in sorted(columns[0].items(), key=lambda item: (-item[1].bytes, item[0])):
        cells = [f"{'**' * own.front}{own.spearman:.2f}{'**' * own.front}" for own in (by[key] for by in columns)]
        yield f"| {key[0]} | {key[1]} | {one.bytes} | " + " | ".join(cells) + " |"


def _by_kind(scores: Sequence[CodeScore]) -> dict[tuple[str, str], CodeScore]:
    """Return scores by name and number of dimensions, "all" for the most of a name."""
    most = {one.name: max(other.dims for other in scores if other.name == one.name) for one in scores}
    return {(one.name, "all" if one.dims == most[one.name] else str(one.dims)): one for one in scores}


if __name__ == "__main__":
    main()
