"""Test what is refused of LoRA adapters: incomplete ones, those of other models, other kinds, files that run code."""

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file, save_file

from support.checkpoints import change_config, save_checkpoint
from support.cli import refused

pytestmark = pytest.mark.slow

peft = pytest.importorskip("peft", reason="needs the extra test-all")


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


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("payload"),)


def pickled(content: bytes) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        no_weights(folder)
        write("adapter_model.bin", content)(folder)

    return change


def base(path: str | None) -> Callable[[Path], object]:
    """Change the base's path, in which {} is the adapter's folder."""
    return lambda folder: change_config(folder, base_model_name_or_path=path and path.format(folder))


def wide_base(folder: Path) -> None:
    change_config(folder, base_model_name_or_path=str(save_checkpoint("bert", folder.parent / "wide", 2)))


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (
            base("{}/nowhere"),
            2,
            "belongs to cannot be had: model '{}/nowhere' is not in the catalogue, not a directory",
        ),
        (base(None), 2, "no base_model_name_or_path in it"),
        (base("{}"), 2, "has no PyTorch weights of its own to merge into"),
        (no_weights, 2, "no adapter_model.safetensors"),
        (write("adapter_config.json", b"{"), 1, "adapter_config.json: cannot be read"),
        (write("adapter_config.json", b"[]"), 1, "adapter_config.json: holds a list; wanted settings by name"),
        (other_shapes, 1, "the adapter does not fit the model that it names (Error(s) in loading state_dict"),
        (lambda folder: change_config(folder, target_modules=["q_proj"]), 1, "the adapter does not fit"),
        (missing_keys, 1, "the adapter does not fit the model that it names (Found missing adapter keys"),
        (lambda folder: change_config(folder, peft_type="SOMETHING"), 1, "the adapter does not fit"),
        (wide_base, 1, "size mismatch"),
        (
            write("adapter_model.safetensors", b"\x00" * 100),
            1,
            "{}/adapter_model.safetensors: is damaged, or no file of safetensors (",
        ),
        (pickled(pickle.dumps(Payload())), 1, "adapter_model.bin: "),
        (pickled(b"nothing"), 1, "adapter_model.bin: is damaged, or no file of PyTorch weights"),
    ],
)
def test_adapters_that_cannot_be_merged_are_refused(
    broken: Path,
    change: Callable[[Path], object],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    change(broken)
    error = refused("export", broken, "--whitening", "none", "--out", tmp_path / "b", code=code)
    assert message.format(broken) in error
    assert "weights_only" not in error
    assert not Path("payload").exists()


def test_prompt_tuning_is_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    network = transformers.AutoModel.from_pretrained(checkpoint("bert"))
    config = peft.PromptTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=3)
    peft.get_peft_model(network, config).save_pretrained(tmp_path / "prompts")
    error = refused("export", tmp_path / "prompts", "--whitening", "none", "--out", tmp_path / "b", code=1)
    assert "holds PROMPT_TUNING, which is not merged; wanted LoRA" in error


def test_missing_peft_names_the_extra_to_install(
    bert_adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    error = refused("export", bert_adapter, "--whitening", "none", "--out", tmp_path / "b", code=1)
    assert "from the clone: python -m pip install -c constraints.txt '.[lora]'" in error
