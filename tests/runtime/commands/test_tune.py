"""Test `whiten tune`, and how its choice is written, obeyed and refused; nothing depends on what is measured."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles import copy_bundle, edit_manifest
from support.cli import invoke
from whiten import Encoder, UsageError
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.commands import tune as tuner
from whiten_runtime.commands.main import whiten
from whiten_runtime.commands.tune import best, candidates, passages, providers_to_try, write_choice
from whiten_runtime.errors import WhitenError
from whiten_runtime.files.replacing import lock_file
from whiten_runtime.opened.tuned import (
    Choice,
    Rate,
    Setting,
    choice_path,
    graph_id,
    this_machine,
    tuned_options,
)

DATA = Path(__file__).parents[2] / "data"
run = partial(invoke, whiten)

CPU = Setting(provider="cpu", threads=4, token_budget=256)
BF16 = Setting(provider="openvino:bf16", threads=4, token_budget=1024)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "ROUNDS", 2)


def rate(setting: Setting, ratio: float, least: float = 1.01) -> Rate:
    return Rate(setting=setting, short=1.0, mixed=1.0, ratio=ratio, least=least)


def test_two_bundles_are_measured_and_their_choices_used(tmp_path: Path) -> None:
    for name in ("bundle-v1", "bundle-v1-int8"):
        shutil.copytree(DATA / name, tmp_path / name)
    fp32, int8 = str(tmp_path / "bundle-v1"), str(tmp_path / "bundle-v1-int8")
    result = run("tune", fp32, int8, "--seconds", "0.5")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split("  ")[0] == "bundle"
    assert sum("default" in line for line in lines) == sum("chosen" in line for line in lines) == 2
    assert f"wrote {int8}.tuned.json" in result.stderr
    document = json.loads(run("tune", int8, "--seconds", "0.2", "--json").stdout)
    assert document["bundles"][int8]["measured"][0]["ratio"] == 1
    document = json.loads(Path(f"{fp32}.tuned.json").read_text())
    assert document["setting"] in [measured["setting"] for measured in document["measured"]]
    result = run("embed", fp32, "A text.", "--tuned")
    assert result.exit_code == 0, result.stderr
    assert run("verify", fp32).exit_code == 0


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [("bundle-v1-vectors", {}, "takes vectors, not texts, and"), ("bundle-v1", {"layers": [0]}, "layer 0 is a table")],
)
def test_bundles_with_nothing_to_tune(tmp_path: Path, name: str, changes: dict[str, Any], message: str) -> None:
    copy = copy_bundle(DATA / name, tmp_path)
    edit_manifest(copy, lambda manifest: manifest.update(changes))
    result = run("tune", str(copy))
    assert (result.exit_code, result.stdout, message in result.stderr) == (1, "", True)
    assert "has nothing to tune" in result.stderr


def test_providers_to_try() -> None:
    assert providers_to_try("fp32", ("VNNI",), plugin=False) == ("cpu",)
    assert providers_to_try("fp32", ("VNNI",), plugin=True) == ("cpu", "openvino")
    assert providers_to_try("fp32", ("BF16", "AMX"), plugin=True) == ("cpu", "openvino", "openvino:bf16")
    assert providers_to_try("int8", ("BF16", "AMX"), plugin=True) == ("cpu",)


def test_candidates() -> None:
    budgets = [("cpu", 1, 128), ("cpu", 1, 512), ("cpu", 1, 1024)]
    assert candidates(("cpu",), 1, 256) == budgets
    assert candidates(("cpu", "openvino"), 5, 256)[:2] == [("openvino", 5, None), ("cpu", 2, None)]


def test_another_setting_is_chosen_only_if_it_wins_clearly() -> None:
    half = Setting(provider="cpu", threads=2, token_budget=256)
    assert best([rate(CPU, 1, 1), rate(half, 1.04)], False) == CPU
    assert best([rate(CPU, 1, 1), rate(half, 1.2, least=0.98)], False) == CPU
    assert best([rate(CPU, 1, 1), rate(half, 1.2)], False) == half


def test_bfloat16_is_chosen_only_if_it_may_be() -> None:
    rates = [rate(CPU, 1, 1), rate(BF16, 2.2, 2.1)]
    assert best(rates, False) == CPU
    assert best(rates, True) == BF16


def test_passages_hold_all_sentences_in_order() -> None:
    import random

    sentences = [str(number) for number in range(100)]
    joined = passages(sentences, random.Random(0))
    assert " ".join(joined).split() == sentences
    assert len({len(passage.split()) for passage in joined}) > 3


def test_the_second_of_two_at_once_is_refused(tmp_path: Path) -> None:
    copy = copy_bundle(DATA / "bundle-v1", tmp_path)
    with (copy / "whiten.json").open("rb") as held:
        lock_file(held)
        result = run("tune", str(copy))
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{copy}: another whiten tune measures it" in result.stderr


def test_a_choice_that_cannot_be_written_names_what_can_be_done(tmp_path: Path) -> None:
    choice = Choice(graph="", machine="", setting=CPU, measured=())
    with pytest.raises(WhitenError, match=r"b\.tuned\.json: cannot .* another place for the bundle$"):
        write_choice(tmp_path / "no" / "b", choice)


def test_a_provider_that_does_not_work_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "providers_to_try", lambda *_: ("cpu", "MissingExecutionProvider"))
    result = run("tune", str(copy_bundle(DATA / "bundle-v1", tmp_path)), "--seconds", "0.2")
    assert result.exit_code == 0, result.stderr
    assert "not measured: provider 'MissingExecutionProvider' is not available here" in result.stderr
    assert "Missing" not in result.stdout


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
        ({"machine": "64 CPUs of Other (VNNI)"}, r"measured on 64 CPUs of Other \(VNNI\), but this machine has"),
        (None, "not a choice of whiten tune"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(bundle: Path, fields: dict[str, Any] | None, message: str) -> None:
    path = write(bundle)
    path.write_bytes(b"\xff{" if fields is None else json.dumps(json.loads(path.read_text()) | fields).encode())
    with pytest.raises(UsageError, match=message) as caught:
        Encoder(bundle, tuned=True)
    assert str(path) in str(caught.value)
    assert "run whiten tune" in str(caught.value)
    for option in ({"threads": 2}, {"device": "cpu"}, {"providers": ["CPUExecutionProvider"]}):
        with pytest.raises(UsageError, match="leave them and device out"):
            Encoder(bundle, tuned=True, **option)  # type: ignore[arg-type]
