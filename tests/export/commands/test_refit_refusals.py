"""`whiten fit`, `refit`, `tune` and `eval codes` refuse what cannot be written or aligned before they compute."""

import errno
import os
from pathlib import Path

import pytest

from support.bundles import copy_bundle, edit_manifest
from support.cli import invoke
from whiten_runtime.commands.main import whiten

NOTHING = "nothing may be embedded"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(f"Sentence number {number}." for number in range(40)))
    return path


@pytest.fixture
def _no_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise AssertionError(NOTHING)

    monkeypatch.setattr("whiten_export.pipeline.fit.fit_bundle", fail)
    monkeypatch.setattr("whiten_runtime.commands.tune.tune_bundle", fail)


@pytest.mark.usefixtures("_no_embedding")
def test_refit_into_a_place_that_is_no_folder(golden: Path, corpus: Path) -> None:
    result = invoke(whiten, "refit", golden / "bundle-v1", "--corpus", corpus, "--out", corpus / "new")
    assert result.exit_code == 2
    wanted = f"'{corpus}' is not a directory, so '{corpus / 'new'}' cannot be written; choose another --out"
    assert wanted in result.stderr


@pytest.mark.usefixtures("_no_embedding")
def test_refit_aligned_to_another_model(golden: Path, corpus: Path, tmp_path: Path) -> None:
    other = copy_bundle(golden / "bundle-v1", tmp_path)
    edit_manifest(other, lambda manifest: manifest["source"].update(weights_sha256="0" * 64))
    options = ("--corpus", corpus, "--out", tmp_path / "new", "--align-to", other)
    result = invoke(whiten, "refit", golden / "bundle-v1", *options)
    assert result.exit_code == 2
    assert "cannot be aligned to: it is of another model" in result.stderr
    result = invoke(whiten, "refit", golden / "bundle-v1", *options[:-1], golden / "bundle-v1", "--dim", 2)
    assert result.exit_code == 2
    assert "dimensions, the new bundle of 2; give --dim" in result.stderr
    result = invoke(whiten, "refit", golden / "bundle-v1", *options[:-1], tmp_path / "none")
    assert result.exit_code == 1
    assert "none' does not exist" in result.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("_no_embedding")
def test_a_tune_that_could_not_write_its_choice(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = copy_bundle(golden / "bundle-v1", tmp_path)

    def refuse(target: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))

    monkeypatch.setattr("whiten_runtime.files.replacing._open", refuse)
    result = invoke(whiten, "tune", copy)
    assert result.exit_code == 1
    assert f"{copy}.tuned.json: cannot be written (Permission denied); check space and permissions" in result.stderr
    assert "or name another place for the bundle" in result.stderr
