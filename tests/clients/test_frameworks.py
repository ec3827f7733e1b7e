"""Test whiten.integrations in the real frameworks, each of which is imported once.

Their vectors; the snippets of the guide; and what becomes of each adapter over its life: used, stored, loaded, moved,
and after its bundle was replaced.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles import change_bundle, copy_bundle
from support.corpus import sentences
from whiten import Encoder

pytestmark = [pytest.mark.slow, pytest.mark.clients]

HERE = Path(__file__).parent
GUIDE = HERE.parents[1] / "docs" / "guides" / "integrations.md"
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

Runner = Callable[..., None]


@dataclass(frozen=True)
class Framework:
    """Says what is run with a framework."""

    module: str  # its module, which is imported first
    heading: str  # section of the guide with its snippets
    program: str | None = None  # function of frameworks.py
    remedy: str | None = None  # what the error of a stored adapter says that one can do; None if no name is stored


FRAMEWORKS = {
    "bertopic": Framework("bertopic", "BERTopic", "bertopic", "pass a new BundleBackend to the framework"),
    "chroma": Framework("chromadb", "Chroma", "chroma", "collection.modify(configuration="),
    "fastembed": Framework("fastembed", "fastembed and Qdrant", "qdrant"),
    "haystack": Framework(
        "haystack", "Haystack", "haystack", "correct `bundle` of this component in the stored pipeline"
    ),
    "keybert": Framework("keybert", "KeyBERT", "keybert", "pass a new BundleBackend to the framework"),
    "langchain": Framework("langchain_core", "LangChain", "langchain", "make new BundleEmbeddings(PATH)"),
    "llama_index": Framework("llama_index.core", "LlamaIndex", "llama_index", 'from_dict(stored | {"bundle": PATH})'),
    "mteb": Framework("mteb", "mteb"),
    "sentence_transformers": Framework("sentence_transformers", "sentence-transformers"),
    "sklearn": Framework("sklearn", "scikit-learn", remedy="set_params(bundle=PATH)"),
    "spacy": Framework("spacy", "spaCy", "spacy", "spacy.load(FOLDER, config="),
    "txtai": Framework("txtai", "txtai", "txtai", 'load(FOLDER, config={"path": PATH})'),
}
"""By the name of the adapter. fastembed and mteb store nothing, and sentence-transformers a copy of the bundle."""


@pytest.fixture(scope="module", params=FRAMEWORKS)
def name(request: pytest.FixtureRequest) -> str:
    adapter: str = request.param
    return adapter


@pytest.fixture(scope="module")
def run(name: str, forks: Callable[..., AbstractContextManager[Runner]]) -> Iterator[Runner]:
    """Run a program with whiten in an environment of the frameworks, in a fork of a process with the framework."""
    with forks("clients" if name == "mteb" else "frameworks", FRAMEWORKS[name].module, whiten=True) as runner:
        yield runner


@pytest.fixture(scope="module")
def prompted(minilm_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real checkpoint, with prompts for queries and documents."""
    copy = copy_bundle(minilm_bundle, tmp_path_factory.mktemp("prompted"))
    change_bundle(copy, prompts=PROMPTS)
    return copy


@pytest.mark.parametrize("name", [name for name, each in FRAMEWORKS.items() if each.program], indirect=True)
def test_framework_gives_the_same_vectors_as_encoder(name: str, run: Runner, prompted: Path, tmp_path: Path) -> None:
    """Vectors of the others are compared in the lives of their adapters."""
    texts, out = tmp_path / "texts.json", tmp_path / "out.npz"
    texts.write_text(json.dumps(TEXTS), "utf-8")
    run(HERE / "frameworks.py", FRAMEWORKS[name].program, prompted, texts, out, folder=tmp_path)
    with Encoder(prompted) as encoder, np.load(out) as arrays:
        assert arrays.files
        for kind in arrays.files:
            want = WANTED[kind](encoder)
            assert arrays[kind].shape == want.shape
            difference = np.abs(arrays[kind] - want).max(axis=1) / np.linalg.norm(want, axis=1)
            assert difference.max() <= 1e-6, (kind, difference.max())


@pytest.mark.parametrize("name", ["langchain"], indirect=True)
def test_langchain_tests_its_embeddings(run: Runner, prompted: Path, tmp_path: Path) -> None:
    options = ("-c", os.devnull, "--noconftest", "-p", "no:cacheprovider", "--asyncio-mode=auto", "--disable-socket")
    tests = HERE / "langchain_standard.py"
    run("pytest", tests, *options, "--allow-unix-socket", folder=tmp_path, BUNDLE=str(prompted))


def sections() -> dict[str, list[str]]:
    """Return the snippets of the guide by their headings."""
    _, *parts = SECTION.split(GUIDE.read_text("utf-8"))
    snippets = {heading: SNIPPET.findall(text) for heading, text in zip(parts[::2], parts[1::2], strict=True)}
    del snippets["Next"]  # links alone
    return snippets


def test_the_guide_has_a_section_for_each_framework() -> None:
    assert sorted(sections()) == sorted(framework.heading for framework in FRAMEWORKS.values())


def test_snippets_of_the_guide_run(name: str, run: Runner, minilm_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "minilm").symlink_to(minilm_bundle)
    snippets = sections()[FRAMEWORKS[name].heading]
    assert snippets
    for index, code in enumerate(snippets):
        program = tmp_path / f"snippet{index}.py"
        program.write_text(code, "utf-8")
        run(program, folder=tmp_path)


@pytest.fixture
def folder(tiny_bundle: Path, tmp_path: Path) -> Path:
    for bundle, prompts in (("one", {"query": "query: ", "document": "passage: "}), ("two", {"query": "ask: "})):
        copy_bundle(tiny_bundle, tmp_path / "made", prompts=prompts).rename(tmp_path / bundle)
    (tmp_path / "texts.json").write_text(json.dumps([*sentences(20), "", "Ünïcödé 日本"]), "utf-8")
    return tmp_path


def test_the_life_of_an_adapter(name: str, run: Runner, folder: Path) -> None:
    """Each call takes steps in a process of its own."""
    live = partial(run, HERE / "lives.py", name, folder)
    live("made")
    live("loaded")
    with Encoder(folder / "one") as one, Encoder(folder / "two") as two:
        space, other = one.space, two.space
    (folder / "one").rename(folder / "other")
    live("refused")
    gone = json.loads((folder / "refused.json").read_text())
    shutil.copytree(folder / "two", folder / "one")
    live("refused,moved")
    replaced = json.loads((folder / "refused.json").read_text())
    remedy = FRAMEWORKS[name].remedy
    if remedy is None:
        assert replaced is None
    else:
        assert f"{folder / 'one'}' does not exist" in gone
        assert name == "spacy" or remedy in gone
        for words in (space, other, remedy, "else embed again"):
            assert words in replaced
