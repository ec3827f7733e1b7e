"""Test that every embedding model of the catalogue is exported by its name from a repository laid out as its own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.cli import ok
from support.hub import Hub
from support.published import TEXTS, modules_of, peer, save_published
from support.repositories import NO_FOLDER, lay_out
from whiten import Encoder
from whiten_models.catalogue import Entry, catalogue
from whiten_runtime.bundle.parity import GATES, compare

pytestmark = pytest.mark.slow

OWN_SHAPE = (
    "bge-m3",
    "multilingual-minilm",
    "multilingual-e5-small",
    "nomic-v1.5",
    "potion",
    "distiluse",
    "instructor",
)


def shapes() -> Iterator[tuple[Entry, list[str]]]:
    """Yield an entry for each kind of repository, and the names of all that have it."""
    kinds: dict[object, list[Entry]] = {}
    for entry in catalogue():
        if entry.as_published and entry.name not in (*NO_FOLDER, "minilm"):
            own = entry.name if entry.name in OWN_SHAPE else None
            kinds.setdefault((entry.model_type, modules_of(entry), bool(entry.prompts), own), []).append(entry)
    for entries in kinds.values():
        yield entries[0], [entry.name for entry in entries]


SHAPES = list(shapes())


def test_all_entries_with_a_folder_are_exported_here() -> None:
    published = {entry.name for entry in catalogue() if entry.as_published}
    assert {name for _, names in SHAPES for name in names} == published - {*NO_FOLDER, "minilm"}


@pytest.mark.parametrize("entry", [entry for entry, _ in SHAPES], ids=["+".join(names) for _, names in SHAPES])
def test_repository_gives_the_vectors_of_sentence_transformers(
    entry: Entry, hub: Hub, tmp_path: Path, check_published: Callable[..., None]
) -> None:
    folder = lay_out(entry, save_published(entry.name, tmp_path / "folder"))
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    hub.repositories[entry.checkpoint] = files
    stderr = ok("export", entry.name, "--out", tmp_path / "bundle").stderr
    assert "was not run" not in stderr
    assert "has not been tried" not in stderr
    heads = (
        "the heads for sparse vectors (sparse_linear.pt) and a vector for each token (colbert_linear.pt) are left out"
    )
    assert (heads in stderr) == (entry.name == "bge-m3")
    assert ("onnx/model.onnx" in hub.fetched, "README.md" in hub.fetched) == (False, True)
    with Encoder(tmp_path / "bundle") as encoder:
        assert encoder.manifest.source.checkpoint == entry.checkpoint
        assert encoder.manifest.published is not None
        assert GATES["fp32"].passes(encoder.verify())
        assert encoder.prompts.items() >= {key: text for key, text in entry.prompts.items() if text}.items()
        model = peer(folder)
        model.prompts |= dict(entry.prompts)  # those that the catalogue alone knows
        if entry.name == "instructor":  # sentence-transformers knows it by its name on the hub
            model.set_pooling_include_prompt(False)
            prompt = "Represent the sentence for retrieval: "
            want = model.encode(TEXTS, prompt=prompt, batch_size=1)
            assert GATES["fp32"].passes(compare(encoder.encode(TEXTS, prompt=prompt), want))
        check_published(encoder, model, TEXTS)
