"""Run whiten inside an emulated machine, and write what it gives: guest.py OUT TEXTS BUNDLE[=COUNT]...

A bundle with a count is compared with the reference on so many of its shortest probes; one without is verified as
`whiten verify` does. The first bundle is refitted; the texts of the file TEXTS are embedded with the last one. Vectors
go to OUT; results are printed, one object of JSON a line.
"""

import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import whiten
from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.parity import compare, read_probes
from whiten_runtime.commands.console import whiten as command


def say(step: str, **result: object) -> None:
    """Print the result of a step."""
    print(json.dumps({"step": step, **result}), flush=True)


def run(*arguments: object) -> None:
    """Run a command of `whiten`; one that fails ends this process."""
    try:
        command.main([str(argument) for argument in arguments], prog_name="whiten")
    except SystemExit as end:
        if end.code:
            sys.exit(f"whiten {' '.join(map(str, arguments))} ended with exit code {end.code}")


def check(path: Path, count: int | None) -> NDArray[np.float32]:
    """Return the vectors of a bundle's probes after comparing them with the reference's."""
    bundle, started = open_bundle(path), time.monotonic()
    probes = read_probes(bundle)
    if bundle.manifest.input == "vectors":
        run("verify", path)
        with whiten.VectorWhitener(path) as whitener:
            return whitener.transform(probes.unwhitened.astype(np.float32))
    shortest = sorted(range(len(probes.texts)), key=lambda number: (len(probes.texts[number]), number))
    places = sorted(shortest[:count])
    with whiten.Encoder(path, threads=1) as encoder:
        vectors = encoder.encode([probes.texts[place] for place in places], prompt="")
    agreement = compare(vectors, probes.embeddings[places])
    if count is None:
        run("verify", path)
    say(
        "probes",
        bundle=path.name,
        texts=len(places),
        difference=agreement.max_difference,
        cosine=agreement.min_cosine,
        verified=count is None,
        seconds=round(time.monotonic() - started, 1),
    )
    return vectors


def use(path: Path, folder: Path) -> None:
    """Embed by the command and in two threads, refit, and code vectors."""
    texts = [f"Sentence {number} of those that are embedded in two threads." for number in range(64)]
    file, corpus, refitted = folder / "texts.txt", folder / "corpus.txt", folder / "refitted"
    file.write_text("\n".join(texts), "utf-8")
    corpus.write_text("\n".join(f"{text} {number}" for text in texts for number in range(8)), "utf-8")
    run("embed", path, "--input", file, "--out", folder / "embedded.npy", "--quiet")
    with whiten.Encoder(path, threads=2) as encoder, ThreadPoolExecutor(2) as pool:
        first, second = pool.map(encoder.encode, [texts, texts])
    say("threads", equal=bool((first == second).all()))
    say("embed", difference=float(np.abs(np.load(folder / "embedded.npy") - first).max()))
    run("refit", path, "--corpus", corpus, "--out", refitted, "--dim", 8, "--quiet")
    with whiten.Encoder(refitted, verify=True) as encoder:
        vectors = encoder.encode(texts)
    coder = whiten.Coder.of(refitted, bytes=4)
    nearest = coder.search(vectors, coder.encode(vectors), 1)
    say("refit", dimension=vectors.shape[1])
    say("codes", recall=float((nearest.rows[:, 0] == np.arange(len(texts))).mean()))


def main(out: Path, texts: Path, *bundles: str) -> None:
    """Run all steps."""
    say("import", version=whiten.__version__)
    run("doctor")
    for bundle in bundles:
        name, _, count = bundle.partition("=")
        np.save(out / f"{Path(name).name}.npy", check(Path(name), int(count) if count else None))
    with tempfile.TemporaryDirectory() as folder:
        use(Path(bundles[0].partition("=")[0]), Path(folder))
    if sentences := texts.read_text("utf-8").splitlines():
        last, started = bundles[-1].partition("=")[0], time.monotonic()
        with whiten.Encoder(last, threads=1) as encoder:
            np.save(out / "sentences.npy", encoder.encode(sentences))
        say("sentences", bundle=Path(last).name, texts=len(sentences), seconds=round(time.monotonic() - started, 1))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]), *sys.argv[3:])
