"""Test the choice of `whiten tune`: what is written, read, and refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whiten import Encoder, UsageError
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.tuned import (
    Choice,
    Rate,
    Setting,
    choice_path,
    graph_id,
    this_machine,
    tuned_options,
    write_choice,
)

DATA = Path(__file__).parents[2] / "data"
SETTING = Setting(provider="cpu", threads=1, token_budget=64)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    shutil.copytree(DATA / "bundle-v1", tmp_path / "bundle")
    return tmp_path / "bundle"


def write(bundle: Path, setting: Setting = SETTING) -> Path:
    manifest = read_manifest(bundle)
    rate = Rate(setting=setting, short=100.0, mixed=10.0, ratio=1.1, least=1.05)
    choice = Choice(
        graph=graph_id(manifest),
        machine=this_machine(),
        setting=setting,
        measured=(rate,),
    )
    return write_choice(bundle, choice)


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_choice_is_obeyed(bundle: Path) -> None:
    assert write(bundle) == bundle.with_name("bundle.tuned.json")
    options = tuned_options(bundle)
    assert (options.threads, options.tuning.token_budget) == (1, 64)
    with Encoder(bundle, tuned=True) as tuned, Encoder(bundle) as usual:
        assert tuned._engine.schedule.budget == 64
        texts = ["A man is playing a guitar.", "", "Someone plays."]
        np.testing.assert_allclose(tuned.encode(texts), usual.encode(texts), atol=1e-5)
        tuned.verify()
    assert [path.name for path in bundle.parent.iterdir()] == ["bundle", "bundle.tuned.json"]  # nothing else is left


def test_path_of_a_relative_bundle(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bundle)
    assert choice_path(Path()) == bundle.with_name("bundle.tuned.json")


def test_missing_choice_says_what_to_run(bundle: Path) -> None:
    with pytest.raises(UsageError, match=r"does not exist; run whiten tune .*bundle, or"):
        Encoder(bundle, tuned=True)


@pytest.mark.parametrize("option", [{"threads": 2}, {"device": "cpu"}, {"providers": ["CPUExecutionProvider"]}])
def test_other_options_beside_tuned_are_refused(bundle: Path, option: dict[str, Any]) -> None:
    write(bundle)
    with pytest.raises(UsageError, match="leave them and device out"):
        Encoder(bundle, tuned=True, **option)


def test_choice_of_another_machine_is_refused(bundle: Path) -> None:
    path = write(bundle)
    change(path, machine="64 CPUs of Other (VNNI)")
    with pytest.raises(UsageError, match=r"measured on 64 CPUs of Other \(VNNI\), but this machine has"):
        Encoder(bundle, tuned=True)


def test_choice_of_another_bundle_is_refused(bundle: Path) -> None:
    path = write(bundle)
    shutil.rmtree(bundle)
    shutil.copytree(DATA / "bundle-v1-int8", bundle)
    with pytest.raises(UsageError, match="made for another graph"):
        Encoder(bundle, tuned=True)
    assert path.exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"colour": 1}, "`colour`"),
        ({"setting": {"provider": "cpu", "threads": 1, "token_budget": 64, "streams": 2}}, "`streams`"),
        ({"setting": {"provider": "cpu", "threads": 1, "token_budget": 0}}, "token_budget"),
        ({"setting": {"provider": "cpu", "threads": 0, "token_budget": 8}}, "threads"),
        ({"setting": {"provider": "cpu:x", "threads": 1, "token_budget": 8}}, "cpu:x"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(bundle: Path, fields: dict[str, Any], message: str) -> None:
    path = write(bundle)
    change(path, **fields)
    with pytest.raises(UsageError, match=message) as caught:
        Encoder(bundle, tuned=True)
    assert str(path) in str(caught.value)
    assert "run whiten tune" in str(caught.value)


def test_a_file_that_is_no_json_is_refused(bundle: Path) -> None:
    write(bundle).write_bytes(b"\xff{")
    with pytest.raises(UsageError, match="not a choice of whiten tune"):
        Encoder(bundle, tuned=True)
