"""Prove bundles on emulated ARM64 processors, and print the rows of benchmarks/parity/arm.md.

usage: python -m arm FOLDER [PYTHON [PROCESSOR...]]. FOLDER keeps the machine for the next run. PYTHON
is 3.11 or 3.13; without a PROCESSOR, all of them run.
"""

import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arm.emulation import PROCESSORS, ROOT, build, missing, run
from arm.guest import check
from arm.long import long_vectors
from arm.networks import LONG, export_fresh, export_long
from whiten import Encoder, Recipe, export_bundle
from whiten_runtime.files.corpus import builtin_sentences

GOLDEN = tuple(sorted((ROOT / "tests" / "data").glob("bundle-v1*")))
PRECISIONS = {"minilm": "fp32", "minilm-fp16": "fp16", "minilm-int8": "int8"}
PROBES = 16
"""Number of probes of the bundles of minilm: one text takes seconds."""
SENTENCES, FEWER = 500, 50
"""Numbers of sentences in int8, on the first processor and on the others."""
ROUNDING = 1e-5
"""Difference above which a rounding to int8 fell on the other side."""
FLOAT32, INT8 = 1e-5, 2e-2
"""Largest differences of long texts from this machine, over the norm."""
LENGTHS = (300, 3000)
"""Numbers of tokens of long texts."""
GUEST, LONG_TEXTS = (Path(__file__).with_name(name) for name in ("guest.py", "long.py"))


def main(folder: Path, python: str = "3.11", *processors: str) -> None:
    """Run every bundle on every processor, compare with this machine, and print a table."""
    if (reason := missing()) is not None:
        sys.exit(f"error: {reason}")
    if unknown := set(processors) - PROCESSORS.keys():
        sys.exit(f"error: no processor {', '.join(unknown)}; wanted {', '.join(PROCESSORS)}")
    work = folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    for name, precision in PRECISIONS.items():
        export_bundle(Recipe("minilm", precision=precision), work / name, replace=True)
    for path in GOLDEN:
        shutil.copytree(path, work / path.name, dirs_exist_ok=True)
    export_fresh(work)
    export_long(work)
    texts = [sentence for _, sentence in builtin_sentences()]
    texts = texts[:: len(texts) // SENTENCES][:SENTENCES]
    machine = folder / f"python{python}"
    build(machine, python)
    whole: dict[str, int | None] = dict.fromkeys(["fresh", *(path.name for path in GOLDEN)])
    counts = whole | dict.fromkeys(PRECISIONS, PROBES)
    here = {name: check(work / name, count) for name, count in counts.items()}
    long_here = {name: long_vectors(work / name, LENGTHS) for name in LONG}
    print("| processor | bundle | texts | from x86-64 | from the reference | cosine |\n|---|---|---|---|---|---|")
    sentences = {}
    for name in processors or PROCESSORS:
        out = work / f"out-{name}"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        (work / "texts").write_text("\n".join(texts[: FEWER if sentences else SENTENCES]), "utf-8")
        bundles = [f"/work/{bundle}" + (f"={count}" if count else "") for bundle, count in counts.items()]
        results = run(machine, PROCESSORS[name], GUEST, [f"/work/out-{name}", "/work/texts", *bundles], work)
        print("\n".join(_rows(name, results, here, out)), flush=True)
        sentences[name] = np.load(out / "sentences.npy")
        arguments = [f"/work/out-{name}", ",".join(map(str, LENGTHS)), *(f"/work/{bundle}" for bundle in LONG)]
        run(machine, PROCESSORS[name], LONG_TEXTS, arguments, work)
        _tell_long(name, long_here, out)
    with Encoder(work / "minilm-int8", threads=1) as encoder:
        _tell_sentences(sentences, encoder.encode(texts))


def _rows(
    processor: str, results: list[dict[str, Any]], here: Mapping[str, NDArray[np.float32]], out: Path
) -> Iterator[str]:
    """Yield a row of the table for each bundle with texts, and one for the other steps."""
    for result in results:
        if result["step"] == "probes":
            name = result["bundle"]
            apart = distance(np.load(out / f"{name}.npy"), here[name])
            own = f"{result['difference']:.1e} | 1 - {1 - result['cosine']:.1e}"
            yield f"| {processor} | {name} | {result['texts']} | {apart.max():.1e} | {own} |"
    steps = {result.pop("step"): result for result in results if result["step"] not in ("probes", "import")}
    yield f"<!-- {processor}: {steps} -->"


def _tell_long(processor: str, here: Mapping[str, NDArray[np.float32]], out: Path) -> None:
    """Print a row for each bundle of long texts; end the program after one that differs too much."""
    for name, vectors in here.items():
        apart = distance(np.load(out / f"{name}.npy"), vectors).max()
        print(f"| {processor} | {name}, long texts | {len(vectors)} | {apart:.1e} | | |", flush=True)
        if apart > (INT8 if name.endswith("int8") else FLOAT32):
            sys.exit(f"error: {processor}, {name}: long texts differ by {apart:.1e}")


def distance(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the largest difference of a coordinate of each row, over the norm of the row, [n]."""
    norms = np.linalg.norm(second.astype(np.float64), axis=1)
    return np.asarray(np.abs(first.astype(np.float64) - second).max(axis=1) / norms)


def _tell_sentences(sentences: Mapping[str, NDArray[np.float32]], here: NDArray[np.float32]) -> None:
    """Print how many int8 vectors differ from those of this machine, by how much, and whether processors agree."""
    first = next(iter(sentences.values()))
    for name, vectors in sentences.items():
        count = len(vectors)
        apart = distance(vectors, here[:count])
        differing = int((apart > ROUNDING).sum())
        print(
            f"{name}: {differing} of {count} sentences in int8 differ from x86-64 by more than {ROUNDING:.0e}", end=""
        )
        print(f", median {np.median(apart):.1e}, worst {apart.max():.1e}", end="; ")
        print(
            f"{'the same bits as' if (vectors == first[:count]).all() else 'not the same bits as'} the first processor"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
