"""Folders of ONNX encoders, as optimum writes them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir

from whiten_export.sources.describe.resolve import resolve
from whiten_export.sources.load.pytorch import PyTorchModel


def save_encoder(
    checkpoint: Path, folder: Path, layers: tuple[int, ...], change: Callable[[ir.Model], object] = lambda model: None
) -> Path:
    """Write a directory as optimum does, with hidden states as outputs."""
    from transformers import AutoTokenizer

    folder.mkdir()
    shutil.copy(checkpoint / "config.json", folder)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
    model = PyTorchModel(resolve(str(checkpoint)), False, "cpu").hidden_states(layers, "mean").model
    change(model)
    ir.save(model, folder / "model.onnx")
    return folder


def rename_last(model: ir.Model) -> None:
    model.graph.outputs[-1].name = "last_hidden_state"
