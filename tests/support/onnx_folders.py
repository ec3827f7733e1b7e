"""Folders of ONNX encoders, as optimum writes them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from support.families import MAX_LENGTH, WIDTH
from whiten_export.graph.attention import lower_attention
from whiten_export.graph.build import constant
from whiten_export.sources.pytorch import PyTorchModel
from whiten_export.sources.resolve import resolve

WEIGHT = np.random.default_rng(5).normal(size=(WIDTH, 8)).astype(np.float32)
"""Weights of a dense layer behind the pooling."""

Change = Callable[[ir.Model], object]


def save_encoder(checkpoint: Path, folder: Path, layers: tuple[int, ...], change: Change = lambda model: None) -> Path:
    """Write a directory as optimum does, with hidden states as outputs."""
    from transformers import AutoTokenizer

    folder.mkdir()
    shutil.copy(checkpoint / "config.json", folder)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
    model = PyTorchModel(resolve(str(checkpoint)), False, "cpu").hidden_states(layers, "mean").model
    lower_attention(model, MAX_LENGTH)
    change(model)
    ir.save(model, folder / "model.onnx")
    return folder


def rename_last(model: ir.Model) -> None:
    model.graph.outputs[-1].name = "last_hidden_state"


def own_vectors(
    name: str, pooling: str = "mean", *, dense: bool = False, unit: bool = False, nan: bool = False, top: int = -1
) -> Change:
    """Return a function that adds an output of one vector a text."""

    def change(model: ir.Model) -> None:
        rename_last(model)
        graph, tape = model.graph, Tape()
        state, mask = graph.outputs[top], graph.inputs[1]
        axis = constant(graph, f"{name}.axis", np.array([1]))
        if pooling == "mean":
            last = constant(graph, f"{name}.last", np.array([2]))
            kept = tape.op("Cast", [mask], {"to": ir.DataType.FLOAT.value})
            total = tape.op(
                "ReduceSum", [tape.op("Mul", [state, tape.op("Unsqueeze", [kept, last])]), axis], {"keepdims": 0}
            )
            value = tape.op("Div", [total, tape.op("ReduceSum", [kept, axis], {"keepdims": 1})])
        elif pooling == "last":
            count = tape.op("ReduceSum", [mask, axis], {"keepdims": 1})
            places = tape.op("Sub", [count, constant(graph, f"{name}.one", np.array([1]))])
            value = tape.op("GatherND", [state, places], {"batch_dims": 1})
        else:
            value = tape.op("Gather", [state, constant(graph, f"{name}.first", np.int64(0))], {"axis": 1})
        if dense:
            value = tape.op("MatMul", [value, constant(graph, f"{name}.weight", WEIGHT)])
        if nan:
            value = tape.op("Div", [value, constant(graph, f"{name}.zero", np.float32(0))])
        if unit:
            value = tape.op("LpNormalization", [value], {"axis": 1, "p": 2})
        value.name, value.type = name, ir.TensorType(ir.DataType.FLOAT)
        value.shape = ir.Shape(["batch_size", 8 if dense else WIDTH])
        graph.extend(tape.nodes)
        graph.outputs.append(value)

    return change
