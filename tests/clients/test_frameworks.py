"""Test whiten.integrations in the real frameworks, and run the snippets of its guide there."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles import change_bundle, copy_bundle
from support.corpus import sentences
from whiten import Encoder

pytestmark = [pytest.mark.slow, pytest.mark.clients]

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "integrations.md"
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

TEXTS = [
    *("Herons stand still in the water and wait for fish.", "The central bank raised its interest rates again."),
    *sentences(60),
    *("", "a", "long " * 400, "Ünïcödé 日本 👩‍👧 русский", "  spaces  "),
]
PROMPTS = {"query": "query: ", "passage": "passage: "}
WANTED: dict[str, Callable[[Encoder], Any]] = {
    "plain": lambda encoder: encoder.encode(TEXTS),
    "documents": lambda encoder: encoder.encode_document(TEXTS),
    "queries": lambda encoder: encoder.encode_query(TEXTS),
    "unit_documents": lambda encoder: encoder.encode_document(TEXTS, normalize_embeddings=True),
    "unit_queries": lambda encoder: encoder.encode_query(TEXTS, normalize_embeddings=True),
}
"""What an array of a framework's program must be."""

FRAMEWORKS = ("langchain", "llama_index", "haystack", "chroma", "qdrant", "txtai", "keybert", "bertopic", "spacy")

Runner = Callable[..., None]


@pytest.fixture(scope="module")
def prompted(minilm_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real checkpoint, with prompts for queries and documents."""
    copy = copy_bundle(minilm_bundle, tmp_path_factory.mktemp("prompted"))
    change_bundle(copy, prompts=PROMPTS)
    return copy


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_framework_gives_the_same_vectors_as_encoder(
    framework: str, run_framework: Runner, prompted: Path, tmp_path: Path
) -> None:
    texts, out = tmp_path / "texts.json", tmp_path / "out.npz"
    texts.write_text(json.dumps(TEXTS), "utf-8")
    run_framework(framework, prompted, texts, out, folder=tmp_path)
    with Encoder(prompted) as encoder, np.load(out) as arrays:
        assert arrays.files
        for name in arrays.files:
            want = WANTED[name](encoder)
            assert arrays[name].shape == want.shape
            difference = np.abs(arrays[name] - want).max(axis=1) / np.linalg.norm(want, axis=1)
            assert difference.max() <= 1e-6, (name, difference.max())


def test_langchain_tests_its_embeddings(run_framework: Runner, prompted: Path, tmp_path: Path) -> None:
    options = ("-c", os.devnull, "--noconftest", "-p", "no:cacheprovider", "--asyncio-mode=auto", "--disable-socket")
    tests = Path(__file__).with_name("langchain_standard.py")
    run_framework("pytest", tests, *options, "--allow-unix-socket", folder=tmp_path, BUNDLE=str(prompted))


def sections() -> dict[str, list[str]]:
    """Return the snippets of the guide by their headings."""
    _, *parts = SECTION.split(GUIDE.read_text("utf-8"))
    snippets = {heading: SNIPPET.findall(text) for heading, text in zip(parts[::2], parts[1::2], strict=True)}
    del snippets["Next"]  # links alone
    return snippets


@pytest.mark.parametrize("heading", list(sections()))
def test_snippets_of_the_guide_run(
    heading: str, run_framework: Runner, run_client_with_whiten: Runner, minilm_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "minilm").symlink_to(minilm_bundle)
    snippets = sections()[heading]
    assert snippets, heading
    for index, code in enumerate(snippets):
        program = tmp_path / f"snippet{index}.py"
        program.write_text(code, "utf-8")
        run = run_client_with_whiten if heading == "mteb" else run_framework
        run(program, folder=tmp_path, HF_HOME=str(tmp_path))
