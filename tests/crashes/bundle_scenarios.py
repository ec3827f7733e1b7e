"""Commands that write bundles of texts and signatures, for the crash suite."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from crashes.scenario import DATA, Scenario, first, opens_bundle, whiten
from support.corpus import sentences

BUNDLE = DATA / "bundle-v1"

_WIDTH = 80
"""Width of word vectors of which the graph's weights are more than a megabyte, and so in model.onnx_data."""


def word_vectors(folder: Path) -> None:
    """Write word vectors, which become a bundle with a tokenizer as other models do, but without torch."""
    words = sorted({word for text in sentences(20) for word in text.lower().split()})
    words += [f"word{number}" for number in range(4000)]
    numbers = np.random.default_rng(0).normal(size=(len(words), _WIDTH))
    rows = (f"{word} {' '.join(f'{x:.4f}' for x in row)}\n" for word, row in zip(words, numbers, strict=True))
    (folder / "words.txt").write_text("".join(rows), "utf-8")


def opens_text_bundle(path: Path) -> None:
    """Open a bundle that has its weights in a file of their own."""
    assert (path / "onnx" / "model.onnx_data").is_file()
    assert (path / "tokenizer.json").is_file()
    opens_bundle(path)


def text_models() -> Iterator[Scenario]:
    """Export a model of texts over an older bundle."""
    export = ("export", "FOLDER/words.txt", "--whitening", "none", "--out", "FOLDER/b")
    old = first(word_vectors, whiten(*export, "--max-words", 3500))
    run = whiten(*export, "--force")
    yield Scenario("export of a model of texts --force", run, ("b",), opens_text_bundle, old, samples=8)


def keys_and_bundle(folder: Path) -> None:
    """Write a pair of keys and a bundle."""
    from support.keys import key_pair

    key_pair(folder)
    shutil.copytree(BUNDLE, folder / "b")


def opens_signature(path: Path) -> None:
    """Verify the signature of a bundle."""
    from whiten_runtime.signing import verify_signature

    verify_signature(path.parent, key=path.parents[1] / "author-public.pem")


def signing() -> Iterator[Scenario]:
    """Sign a bundle for the first time, and again."""
    sign = whiten("sign", "FOLDER/b", "--key", "FOLDER/author.pem")
    for name, old in (("sign", first(keys_and_bundle)), ("sign, over another", first(keys_and_bundle, sign))):
        made = ("b/model.sig",)
        yield Scenario(name, sign, made, opens_signature, old, random=made, needs="model_signing")
