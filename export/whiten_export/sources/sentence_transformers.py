"""Load modules and tables of sentence-transformers, and compute vectors with it: what people mean by its models."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from whiten_export.proof.gate import Case, PublishedVectors, longest_texts
from whiten_export.proof.reference import ACTIVATIONS, Dense, LayerNorm, Module, Truncate
from whiten_export.sources.checkpoint import ADAPTER_CONFIG, Checkpoint, module_weights, read_settings
from whiten_export.sources.checks import renamed_settings
from whiten_export.sources.config import plain_attention
from whiten_export.sources.network import check_numbers, explaining, one_thread, quiet
from whiten_export.sources.own_code import restore_buffers, restore_weights, way_to_code
from whiten_export.sources.tokenizer import obey_ends
from whiten_runtime.errors import UsageError, WhitenError, needing
from whiten_runtime.files.replacing import written_as

_TORCH = "torch.nn.modules."


def load_module(kind: str, folder: Path) -> Module:
    """Load a Dense or a LayerNorm."""
    if kind == "LayerNorm":
        norm = _load(kind, folder).norm
        return LayerNorm(_array(norm.weight), _array(norm.bias), norm.eps)
    path = folder / "config.json"
    settings = read_settings(path)
    # sentence-transformers takes Tanh in place of an activation function that is not torch's
    activation = str(settings.get("activation_function", f"{_TORCH}activation.Tanh"))
    name = activation.rsplit(".", 1)[-1]
    if not activation.startswith(_TORCH) or name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise WhitenError(f"{path}: activation_function '{activation}' is not supported; wanted {known} of torch.nn")
    loaded = _load(kind, folder)
    if unknown := settings.keys() - loaded.config_keys:  # which sentence-transformers drops
        installed = version("sentence-transformers")
        raise WhitenError(
            f"{path}: has the setting '{min(unknown)}', which is not supported by sentence-transformers {installed}; "
            f"install a newer one, if that has it; wanted {', '.join(loaded.config_keys)}"
        )
    for place in ("module_input_name", "module_output_name"):
        if getattr(loaded, place) != "sentence_embedding":
            raise WhitenError(f"{path}: {place} is not sentence_embedding, which is not supported")
    residual = None
    if loaded.use_residual:
        same = loaded.in_features == loaded.out_features
        residual = np.eye(loaded.in_features, dtype=np.float32) if same else _transposed(loaded.residual.weight)
    bias = _array(loaded.linear.bias) if loaded.bias else None
    return Dense(_transposed(loaded.linear.weight), bias, name, residual)


def load_layer_weights(folder: Path) -> dict[int, float]:
    """Load a WeightedLayerPooling, and return the weights of the layers."""
    loaded = _load("WeightedLayerPooling", folder)
    weights = _array(loaded.layer_weights).tolist()
    if not sum(weights):
        raise WhitenError(f"{module_weights(folder)}: the layer weights sum to 0, so their average does not exist")
    return dict(enumerate(weights, loaded.layer_start))


def load_table(folder: Path) -> NDArray[np.float32]:
    """Load the table of a StaticEmbedding, float32 [number of tokens, d]."""
    return _array(_load("StaticEmbedding", folder).embedding.weight)


def _load(kind: str, folder: Path) -> Any:
    """Load a module by its class; the settings that it does not know fail."""
    file = module_weights(folder)
    try:
        with quiet(), explaining([file]):
            loaded = _class(kind).load(str(folder))
    except WhitenError:
        raise
    except Exception as error:  # its exceptions share no base class
        reason = " ".join(str(error).split())[:300]
        raise WhitenError(
            f"{folder}: sentence-transformers cannot load this {kind} ({reason}); copy the model again"
        ) from error
    check_numbers(loaded, [file])
    return loaded


def _class(kind: str) -> Any:
    with needing("export"):
        from sentence_transformers.sentence_transformer import modules
    return getattr(modules, kind)


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return tensor.detach().float().numpy()


def _transposed(tensor: torch.Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(_array(tensor).T)


def encode_published(
    checkpoint: Checkpoint, cases: Sequence[Case], max_seq_length: int | None, trust_remote_code: bool, device: str
) -> PublishedVectors:
    """Load a folder with sentence-transformers and embed texts, each alone, so that padding plays no part.

    Of texts of thousands of tokens, only the ids are taken: the network is that of the reference.
    """
    authors = checkpoint.authors
    assert authors is not None
    short = [case for case in cases if not case.long]
    try:
        with quiet(), one_thread(), _loadable(checkpoint) as root:
            model = _open(root, checkpoint, trust_remote_code, device)
            model.float().eval()
            if not authors.include_prompt:  # which the files of an INSTRUCTOR do not say
                model.set_pooling_include_prompt(False)
            table = model[0].tokenizer if checkpoint.kind == "static" else None
            if table is not None and max_seq_length is not None:
                table.enable_truncation(max_seq_length, direction=(table.truncation or {}).get("direction", "right"))
            for module in model.modules():
                if type(module).__name__ == "Transformer" and hasattr(module, "auto_model"):  # and not DistilBERT's
                    module.max_seq_length = max_seq_length or module.max_seq_length
                    obey_ends(checkpoint, module.tokenizer)
                    restore_weights(module.auto_model, checkpoint.weights)
                    restore_buffers(module.auto_model)
            vectors = [
                model.encode(list(case.texts), prompt=case.prompt, batch_size=1, show_progress_bar=False)
                for case in short
            ]
            read = [model.preprocess([text])["input_ids"].flatten().tolist() for text, _ in longest_texts(cases)]
    except WhitenError:
        raise
    except Exception as error:  # its exceptions share no base class
        reason = " ".join(str(error).split())
        if not trust_remote_code and "trust_remote_code" in reason:
            raise UsageError(f"'{checkpoint.model}' {way_to_code(checkpoint, reason)}") from error
        raise WhitenError(f"sentence-transformers cannot load '{checkpoint.model}': {reason[:300]}") from error
    without = f" without {' and '.join(authors.left_out)}" if authors.left_out else ""
    name = f"sentence-transformers {version('sentence-transformers')}{without}, float32"
    for case, part in zip(short, vectors, strict=True):
        for text, vector in zip(case.texts, part, strict=True):
            if not np.isfinite(vector).all():
                prompt = f", with the prompt {case.prompt[:40]!r}" if case.prompt else ""
                raise WhitenError(
                    f"{name} gives NaN or infinity for {text[:40]!r}{prompt}, so '{checkpoint.model}' cannot be proven "
                    "against it"
                )
    return PublishedVectors(name, tuple(np.asarray(part, np.float64) for part in vectors), read)


def _open(root: Path, checkpoint: Checkpoint, trust_remote_code: bool, device: str) -> Any:
    """Open a folder; of a Router, the modules of the chosen route alone, as those of others may be code or pickles.

    Modules that are left out may be code too.
    """
    from sentence_transformers import SentenceTransformer

    authors, place = checkpoint.authors, checkpoint.root or checkpoint.directory
    assert authors is not None
    options = {
        "trust_remote_code": trust_remote_code,
        "local_files_only": True,
        "config_kwargs": renamed_settings(checkpoint, trust_remote_code),
        "model_kwargs": {"dtype": torch.float32, "device_map": None} | plain_attention(checkpoint),
    }
    if authors.route is None and not authors.left_out:
        return SentenceTransformer(str(root), device=device, **options)
    chosen = [
        _class(step.kind).load(str(root), subfolder=step.folder.relative_to(place).as_posix(), **options)
        for step in authors.steps
    ]
    width = next((module.dimension for module in authors.modules if isinstance(module, Truncate)), None)
    return SentenceTransformer(modules=chosen, device=device, truncate_dim=width)


@contextmanager
def _loadable(checkpoint: Checkpoint) -> Iterator[Path]:
    """Yield the folder of a model; where its adapter's base lies beside it, a folder of links that says where."""
    root = checkpoint.root or checkpoint.directory
    if checkpoint.adapter is None or checkpoint.base_beside is None:
        yield root
        return
    with TemporaryDirectory(ignore_cleanup_errors=True) as place:  # Windows keeps files that are mapped
        with written_as(Path(place), "another folder by TMPDIR"):
            copy = Path(shutil.copytree(root, Path(place, "model"), copy_function=_link))
            config = copy / checkpoint.adapter.relative_to(root) / ADAPTER_CONFIG
            content = read_settings(config) | {"base_model_name_or_path": str(checkpoint.base_beside)}
            config.unlink()
            config.write_text(json.dumps(content), "utf-8")
        yield copy


def _link(file: str, copy: str) -> None:
    """Link to a file; copy it where the system has no links for everybody, as Windows."""
    try:
        Path(copy).symlink_to(Path(file).resolve())
    except OSError:
        shutil.copyfile(file, copy)
