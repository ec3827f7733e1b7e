"""Test how a model is found by a name or a path, and which licence is taken over: its own, or the catalogue's."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from whiten import IntegrityError, UsageError
from whiten_export.sources.checkpoint import Checkpoint, stated_license
from whiten_export.sources.resolve import resolve
from whiten_models.catalogue import find


@pytest.mark.slow
def test_resolve_a_directory(checkpoint: Callable[[str], Path]) -> None:
    found = resolve(str(checkpoint("bert")))
    assert (found.name, found.hub_id, found.revision, found.entry) == ("tiny-bert", None, None, None)
    assert not found.sentence_similarity
    assert len(found.weights_sha256) == 64


def test_minilm_is_read_from_its_package_at_the_pinned_revision(minilm_checkpoint: Path) -> None:
    found = resolve("minilm")
    entry = find("minilm")
    assert entry is not None
    assert found.directory == minilm_checkpoint
    assert (found.revision, found.weights_sha256) == (entry.revision, entry.weights_sha256)
    assert found.sentence_similarity
    assert resolve("sentence-transformers/all-MiniLM-L6-v2").name == "minilm"


def test_other_weights_under_a_pinned_name_are_refused(
    minilm_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered = tmp_path / "model"
    shutil.copytree(minilm_checkpoint, altered)
    with (altered / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    monkeypatch.setattr("whiten_export.sources.resolve._packaged", lambda entry, revision: altered)
    with pytest.raises(IntegrityError, match="catalogue"):
        resolve("minilm")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bert-bose", "bert-base"),
        ("no model", "no model"),
        ("a/..", "a/.."),
        ("-a/b", "-a/b"),
        ("a/" + "b" * 200, "catalogue"),
    ],
)
def test_unknown_models_are_refused(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        resolve(name)


def test_a_path_may_have_the_sign_of_a_revision(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(checkpoint("bert"), tmp_path / "org" / "bert@v1")
    found = resolve("org/bert@v1")
    assert (found.name, found.hub_id, found.revision) == ("bert-v1", None, None)
    with pytest.raises(UsageError, match=r"'\./org/bert@v2'"):
        resolve("./org/bert@v2")


ENTRY = find("bert-base")


@pytest.mark.parametrize(
    ("content", "licence"),
    [
        ("---\nlicense: mit\n---\n# Model\n", "mit"),
        ("---\nlanguage: en\nlicense: Apache-2.0\n---\n", "apache-2.0"),
        ("---\nlicense:\n- mit\n- gpl\n---\n", None),
        ("# Model\nlicense: mit\n", None),
        ("---\nlicense: [mit\n---\n", None),
        ("\udc80", None),
        ("", None),
    ],
)
def test_the_models_own_card_goes_before_the_catalogue(tmp_path: Path, content: str, licence: str | None) -> None:
    checkpoint = Checkpoint("bert-base", "bert-base", "transformers", tmp_path, ())
    assert stated_license(checkpoint) is None
    (tmp_path / "README.md").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert stated_license(checkpoint) == licence
    assert stated_license(replace(checkpoint, entry=ENTRY)) == (licence or "apache-2.0")
    assert stated_license(replace(checkpoint, kind="words")) is None
    assert stated_license(replace(checkpoint, adapter=tmp_path / "adapter")) is None


def test_the_licence_of_the_catalogue_is_spelled_as_on_the_hub(tmp_path: Path) -> None:
    assert ENTRY is not None
    for licence, spelled in (("see the checkpoint", None), ("LicenseRef-Gemma", "gemma"), ("MIT", "mit")):
        entry = replace(ENTRY, licence=licence)
        assert stated_license(Checkpoint("a", "a", "words", tmp_path, (), entry=entry)) == spelled
