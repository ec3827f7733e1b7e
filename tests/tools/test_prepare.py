"""What `benchmarks.all` prepared is used again, and made anew when its source or its texts change."""

import json
from pathlib import Path

import pytest

from benchmarks.all import prepare


class Runner:
    """Stands in for the engines: notes what is asked of it."""

    def __init__(self, log: list[str], model: str) -> None:
        self.log, self.model = log, model

    def worker(self, action: str, engine: str) -> str:
        self.log.append(f"{self.model} {action} {engine}")
        return ""

    def agree(self, engines: list[str]) -> dict[str, float]:
        self.log.append(f"{self.model} agree {len(engines)}")
        return dict.fromkeys(engines, 0.0)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(prepare, "bench", lambda model, *_: Runner(found, model))
    monkeypatch.setattr(prepare, "_export", lambda target, precision: found.append(f"export {precision}"))
    monkeypatch.setattr(prepare, "_versions", lambda cache, name: {name: "1"})
    return found


def test_what_is_ready_is_not_made_again(log: list[str], tmp_path: Path) -> None:
    first = prepare.prepare(["minilm"], tmp_path, ["a"])
    assert log[:3] == ["export fp32", "export fp16", "export int8"]
    assert "minilm prepare fastembed-fp32" in log
    # The graph that OpenVINO and fastembed load comes first.
    assert log.index("minilm prepare st-onnx") < log.index("minilm prepare openvino-fp32")
    assert set(first["versions"]) == set(prepare.PACKAGES)
    log.clear()
    assert prepare.prepare(["minilm"], tmp_path, ["a"]) == first
    assert log == []


def test_another_model_is_added(log: list[str], tmp_path: Path) -> None:
    prepare.prepare(["minilm"], tmp_path, ["a"])
    log.clear()
    found = prepare.prepare(["minilm", "bert-base"], tmp_path, ["a"])
    assert set(found["differences"]) == {"minilm", "bert-base"}
    assert {line.split()[0] for line in log} == {"bert-base"}


def test_other_texts_and_another_source_make_everything_anew(
    log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare.prepare(["minilm"], tmp_path, ["a"])
    before = list(log)
    log.clear()
    prepare.prepare(["minilm"], tmp_path, ["b"])
    assert log == before
    log.clear()
    monkeypatch.setattr(prepare, "_SOURCES", ("constraints.txt",))
    prepare.prepare(["minilm"], tmp_path, ["b"])
    assert log == before


def test_a_preparation_that_was_broken_off_goes_on(
    log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Runner, engines: list[str]) -> dict[str, float]:
        raise SystemExit("does not compute what whiten does")

    with monkeypatch.context() as patched:
        patched.setattr(Runner, "agree", refuse)
        with pytest.raises(SystemExit):
            prepare.prepare(["minilm"], tmp_path, ["a"])
    assert json.loads((tmp_path / "ready.json").read_text())["differences"] == {}
    log.clear()
    assert prepare.prepare(["minilm"], tmp_path, ["a"])["differences"]["minilm"]["st-torch"] == 0.0
    assert not any(line.startswith("export") for line in log)


def test_engines_are_those_of_the_tables() -> None:
    from benchmarks.all.tables import ROWS

    wanted = {name for _, full, small in ROWS for name in (full, small) if name and not name.endswith("bf16")}
    assert wanted | {"whiten-fp32", "whiten-int8", "st-torch"} <= set(prepare.engines("minilm"))
    assert "whiten-bf16" not in prepare.engines("minilm")
