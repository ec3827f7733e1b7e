"""Test what is refused of LoRA adapters: incomplete ones, those of other models, other kinds, files that run code."""

import pickle
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from click.testing import Result
from safetensors.numpy import load_file, save_file

from support.checkpoints import change_config, save_checkpoint
from support.cli import invoke
from whiten_export.commands.export import export

pytestmark = pytest.mark.slow

peft = pytest.importorskip("peft", reason="needs the extra test-all")

run = partial(invoke, export)


def change_weights(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    change(weights)
    save_file(weights, folder / "adapter_model.safetensors")


def no_weights(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()


def other_shapes(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.update({key: value[:, :3] for key, value in weights.items()}))


def missing_keys(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.pop(next(key for key in weights if "lora_B" in key)))


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: change_config(folder, base_model_name_or_path=str(folder / "nowhere")),
            "belongs to cannot be had: model '{}/nowhere' is not in the catalogue, not a directory",
        ),
        (lambda folder: change_config(folder, base_model_name_or_path=None), "no base_model_name_or_path in it"),
        (no_weights, "no adapter_model.safetensors"),
        (write("adapter_config.json", b"{"), "adapter_config.json: cannot be read"),
        (write("adapter_config.json", b"[]"), "adapter_config.json: cannot be read"),
        (write("adapter_config.json", b"[" * 100_000), "adapter_config.json: cannot be read"),
        (
            lambda folder: change_config(folder, base_model_name_or_path=str(folder)),
            "has no PyTorch weights of its own to merge into",
        ),
    ],
)
def test_incomplete_adapters_are_refused(
    broken: Path, change: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    change(broken)
    check_refused(run(broken, "--out", tmp_path / "b"), 2, message.format(broken))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_shapes, "size mismatch"),
        (lambda folder: change_config(folder, target_modules=["q_proj"]), "q_proj"),
        (missing_keys, "Found missing adapter keys"),
        (lambda folder: change_config(folder, peft_type="SOMETHING"), "does not fit"),
    ],
)
def test_adapters_that_do_not_fit_their_base_are_refused(
    broken: Path, change: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    change(broken)
    result = run(broken, "--whitening", "none", "--out", tmp_path / "b")
    check_refused(result, 1, message)
    assert "the adapter does not fit the model that it names" in result.stderr


def test_a_damaged_adapter_is_named(broken: Path, tmp_path: Path) -> None:
    write("adapter_model.safetensors", b"\x00" * 100)(broken)
    result = run(broken, "--whitening", "none", "--out", tmp_path / "b")
    check_refused(result, 1, f"{broken}/adapter_model.safetensors: is damaged, or no file of safetensors (")


def test_base_of_another_size_is_refused(broken: Path, tmp_path: Path) -> None:
    change_config(broken, base_model_name_or_path=str(save_checkpoint("bert", tmp_path / "wide", 2)))
    check_refused(run(broken, "--whitening", "none", "--out", tmp_path / "b"), 1, "size mismatch")


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("payload"),)


def test_pickled_adapter_runs_no_code(broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    no_weights(broken)
    (broken / "adapter_model.bin").write_bytes(pickle.dumps(Payload()))
    check_refused(run(broken, "--whitening", "none", "--out", tmp_path / "b"), 1, "adapter_model.bin: ")
    assert not Path("payload").exists()


def test_an_adapter_that_is_no_pickle(broken: Path, tmp_path: Path) -> None:
    no_weights(broken)
    (broken / "adapter_model.bin").write_bytes(b"nothing")
    result = run(broken, "--whitening", "none", "--out", tmp_path / "b")
    check_refused(result, 1, "adapter_model.bin: is damaged, or no file of PyTorch weights")
    assert "weights_only" not in result.stderr


def test_prompt_tuning_is_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    network = transformers.AutoModel.from_pretrained(checkpoint("bert"))
    config = peft.PromptTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=3)
    peft.get_peft_model(network, config).save_pretrained(tmp_path / "prompts")
    result = run(tmp_path / "prompts", "--whitening", "none", "--out", tmp_path / "b")
    check_refused(result, 1, "holds PROMPT_TUNING, which is not merged; wanted LoRA")


def test_missing_peft_names_the_extra_to_install(
    bert_adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    result = run(bert_adapter, "--whitening", "none", "--out", tmp_path / "b")
    check_refused(result, 1, "from the clone: python -m pip install -c constraints.txt '.[lora]'")


def check_refused(result: Result, code: int, message: str) -> None:
    *stages, error = result.stderr.splitlines()
    assert (result.exit_code, error.startswith("error: "), message in error) == (code, True, True), result.stderr
    assert all(line.startswith("·") for line in stages), result.stderr
