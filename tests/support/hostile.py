"""Files of somebody else: folders of models that try to run code of their own, and texts, vectors and arrays."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from support.checkpoints import OLD, write_json, write_modules

Edit = Callable[[Path], object]

_CODE = """
from pathlib import Path
with Path({mark!r}).open("a") as file:
    file.write("ran ")
from torch import nn
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
class Config(BertConfig): pass
class Model(BertModel): config_class = Config
class Tokenizer(PreTrainedTokenizerFast): pass
class Module(nn.Module):
    @classmethod
    def load(cls, *arguments, **options): return cls()
    def forward(self, features, **options): return features
"""

_NETWORK = {"AutoConfig": "theirs.Config", "AutoModel": "theirs.Model"}
_TRUSTED = {name: {"trust_remote_code": True} for name in ("model_args", "config_args", "tokenizer_args")}
_TOKENIZER = {"AutoTokenizer": ["theirs.Tokenizer", None]}
_OF_ROUTE = ("--route", "query")


@dataclass(frozen=True)
class Way:
    """A change of a good folder by which code of it may run."""

    base: str  # good folder: bert, published, static, routes, static-routes or adapter
    edit: Edit  # changes the folder, in which theirs.py lies
    plan: int = 0  # exit code of a plan
    export: int = 0  # exit code of an export
    options: tuple[str, ...] = ()
    consent: bool = False  # whether the code runs with --trust-remote-code


def write_code(folder: Path, mark: Path) -> None:
    """Write a module that appends to a file when it is imported, beside every config of a folder."""
    for place in {folder, *(path.parent for path in folder.rglob("config.json"))}:
        (place / "theirs.py").write_text(_CODE.format(mark=str(mark)), "utf-8")


def change(path: Path, **settings: object) -> None:
    """Set keys of a JSON file, which need not exist."""
    write_json(path, (json.loads(path.read_text("utf-8")) if path.is_file() else {}) | settings)


def pickled(folder: Path, name: str = "pytorch_model.bin") -> None:
    """Put a pickle that calls a function in place of the weights of a folder."""
    import torch

    (folder / name.replace("pytorch_model.bin", "model.safetensors").replace(".bin", ".safetensors")).unlink()
    written = io.BytesIO()
    torch.save({"linear.weight": _Calls(str(folder / "ran"))}, written)
    (folder / name).write_bytes(written.getvalue())


class _Calls:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({self.path!r}, 'w')",)


def _add_module(kind: str, place: str = "3_Theirs") -> Edit:
    def edit(folder: Path) -> None:
        listed = json.loads((folder / "modules.json").read_text("utf-8"))
        write_json(folder / "modules.json", [*listed, {"idx": 9, "name": "9", "path": place, "type": kind}])

    return edit


def _add_to_route(kind: str, place: str = "document_9_Theirs", used: bool = True) -> Edit:
    """Add a module to the route that is not exported; with `used` false, name its class alone."""

    def edit(folder: Path) -> None:
        content = json.loads((folder / "router_config.json").read_text("utf-8"))
        content["types"][place] = kind
        if used:
            content["structure"]["document"].append(place)
        write_json(folder / "router_config.json", content)

    return edit


def _copy_dense(folder: Path) -> None:
    shutil.copytree(next(folder.glob("*_Dense")), folder.with_name("theirs"))


def _weights_elsewhere(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.with_name("theirs.safetensors"))
    change(folder / "config.json", transformers_weights="../theirs.safetensors")


def _parts_elsewhere(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.with_name("theirs.safetensors"))
    write_json(folder / "model.safetensors.index.json", {"weight_map": {"name": "../theirs.safetensors"}})


def _in(pattern: str, edit: Edit) -> Edit:
    return lambda folder: edit(next(folder.glob(pattern)))


def _settings(name: str, **settings: object) -> Edit:
    return lambda folder: change(folder / name, **settings)


def _both(*edits: Edit) -> Edit:
    return lambda folder: [edit(folder) for edit in edits]


_BERT_TOKENIZER = _settings("tokenizer_config.json", tokenizer_class="BertTokenizer")
_OWN_NETWORK = _both(_settings("config.json", auto_map=_NETWORK), _BERT_TOKENIZER)
_UNKNOWN_NETWORK = _both(_OWN_NETWORK, _settings("config.json", model_type="theirs"))
_ACTIVATION = _settings("config.json", activation_function="theirs.Module")
_WORDS = _both(
    _add_to_route(OLD + "WordEmbeddings"),
    _settings("document_9_Theirs/wordembedding_config.json", tokenizer_class="theirs.Tokenizer"),
)

WAYS: Mapping[str, Way] = {
    # A network of transformers. A class that transformers has is taken in place of the checkpoint's.
    "network": Way("bert", _OWN_NETWORK, consent=True),
    "unknown-network": Way("bert", _UNKNOWN_NETWORK, 2, 2, consent=True),
    "tokenizer": Way(
        "bert", _settings("tokenizer_config.json", auto_map={"AutoTokenizer": ["theirs.Tokenizer", None]})
    ),
    "tokenizer-path": Way("bert", _settings("tokenizer_config.json", tokenizer_class="theirs.Tokenizer"), 1, 1),
    "tokenizer-that-is-a-model": Way(
        "bert", _both(_UNKNOWN_NETWORK, _settings("tokenizer_config.json", tokenizer_class="AutoModel")), 2, 2
    ),
    "tokenizer-that-is-a-processor": Way(
        "bert",
        _both(
            _settings("tokenizer_config.json", tokenizer_class="AutoProcessor"),
            _settings("processor_config.json", auto_map={"AutoProcessor": "theirs.Tokenizer"}),
        ),
        2,
        2,
    ),
    "words-elsewhere": Way("bert", _settings("tokenizer_config.json", vocab=__file__), 1, 1),
    "weights-elsewhere": Way("bert", _weights_elsewhere, 1, 1),
    "parts-elsewhere": Way("bert", _parts_elsewhere, 1, 1),
    "pickle": Way("bert", pickled, 0, 1),
    # Modules of sentence-transformers.
    "module": Way("published", _add_module("theirs.Normalize"), 1, 1),
    "module-elsewhere": Way("published", _both(_copy_dense, _add_module(OLD + "Dense", "../theirs")), 1, 1),
    "activation": Way("published", _in("*_Dense", _ACTIVATION), 1, 1),
    "activation-of-torch": Way(
        "published", _in("*_Dense", _settings("config.json", activation_function="torch.theirs.Module")), 1, 1
    ),
    "module-pickle": Way("published", _in("*_Dense", pickled), 1, 1),
    "trusting-arguments": Way("published", _both(_OWN_NETWORK, _settings("sentence_bert_config.json", **_TRUSTED))),
    "processor": Way(
        "published", _settings("processor_config.json", auto_map={"AutoProcessor": "theirs.Tokenizer"}), 0, 2
    ),
    "static-pickle": Way("static", pickled, 1, 1),
    # The route that is not exported: none of it is loaded.
    "route": Way("static-routes", _add_to_route("theirs.Module"), options=_OF_ROUTE),
    "route-class-that-no-route-has": Way(
        "static-routes", _add_to_route("theirs.Module", used=False), options=_OF_ROUTE
    ),
    "route-elsewhere": Way("static-routes", _add_to_route(OLD + "Dense", "../theirs"), options=_OF_ROUTE),
    "route-activation": Way("static-routes", _in("document_*Dense", _ACTIVATION), options=_OF_ROUTE),
    "route-words": Way("static-routes", _WORDS, options=_OF_ROUTE),
    "route-pickle": Way("static-routes", _in("document_*Dense", pickled), options=_OF_ROUTE),
    "route-module": Way(
        "static-routes", _add_to_route("sentence_transformers.base.model.importlib"), options=_OF_ROUTE
    ),
    "route-network": Way("routes", _in("document_*Transformer", _UNKNOWN_NETWORK), options=_OF_ROUTE),
    "route-trusting-arguments": Way(
        "routes",
        _in("document_*Transformer", _both(_UNKNOWN_NETWORK, _settings("sentence_bert_config.json", **_TRUSTED))),
        options=_OF_ROUTE,
    ),
    "own-route": Way("routes", _in("query_*Transformer", _OWN_NETWORK), options=_OF_ROUTE, consent=True),
    # An adapter, and the model that it is merged into.
    "adapter-pickle": Way("adapter", lambda folder: pickled(folder, "adapter_model.bin"), 0, 1),
    "adapter-classes": Way(
        "adapter",
        _settings(
            "adapter_config.json",
            auto_mapping={"base_model_class": "Model", "parent_library": "theirs"},
            megatron_config={},
            megatron_core="theirs",
        ),
    ),
}


def save_good(base: str, folder: Path) -> Path:
    """Write a good folder of a kind that `Way.base` names."""
    from sentence_transformers.base.modules import Dense, Router
    from sentence_transformers.sentence_transformer.modules import Pooling

    from support.checkpoints import change_config, save_adapter, save_checkpoint
    from support.published import SIZE, save, static, transformer

    if base == "bert":
        return save_checkpoint("bert", folder)
    if base == "adapter":
        save_adapter(save_checkpoint("bert", folder.with_name("adapted")), folder, "AutoModel", None)
        change_config(folder, base_model_name_or_path=str(folder.with_name("adapted")))
        return folder
    if base == "published-adapter":
        save_good("adapter", folder)
        change(folder / "adapter_config.json", base_model_name_or_path="adapted")
        for name in ("vocab.txt", "tokenizer_config.json"):
            shutil.copy(folder.with_name("adapted") / name, folder)
        _BERT_TOKENIZER(folder)
        write_modules(folder, "Transformer", "Pooling")
        write_json(folder / "1_Pooling" / "config.json", {"embedding_dimension": 32, "pooling_mode": "mean"})
        return folder
    if base == "published":
        return save([transformer("bert"), Pooling(SIZE, "mean"), Dense(SIZE, SIZE)], folder)
    if base == "static":
        return save([static()], folder)
    routes = [static()], [static(), Dense(SIZE, SIZE)]
    if base == "routes":
        routes = tuple([transformer("bert"), Pooling(SIZE, mode)] for mode in ("mean", "cls"))  # type: ignore[assignment]
    return save([Router(dict(zip(("query", "document"), routes, strict=True)))], folder)


def _npy(header: str, body: bytes = b"") -> bytes:
    """Return a .npy file of a header, whatever it says."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text + body


def _npy_of(shape: str, kind: str = "'<f4'") -> bytes:
    return _npy(f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}}}")


def _safetensors(header: object, body: bytes = b"") -> bytes:
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(content).to_bytes(8, "little") + content + body


class _Touches:
    """Runs a function when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("ran"),)


def _saved(array: Any) -> bytes:
    written = io.BytesIO()
    np.save(written, array, allow_pickle=True)
    return written.getvalue()


def _zipped(count: int) -> bytes:
    """Return an archive of a file of zeros, a thousand times as large."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("array.npy", bytes(count))
    return written.getvalue()


_CALL = "__import__('pathlib').Path('ran').touch()"
_LONG_LINE = 65 << 20  # more than a line may have
TEXTS: Mapping[str, Callable[[], bytes]] = {
    "line.txt": lambda: b"a" * _LONG_LINE,
    "line.txt.gz": lambda: gzip.compress(b"a" * _LONG_LINE, 1),
    "line.txt.bz2": lambda: bz2.compress(b"a" * _LONG_LINE, 1),
    "line.txt.xz": lambda: lzma.compress(b"a" * _LONG_LINE, preset=0),
    "cut.txt.gz": lambda: gzip.compress(b"a text\n" * 100)[:-9],
    "garbage.txt.gz": lambda: b"\x1f\x8b" + bytes(range(200)),
    "field.csv": lambda: b'text\n"' + b"a\n" * (_LONG_LINE // 2),
    "deep.jsonl": lambda: b'{"text": ' + b"[" * 100_000,
    "digits.jsonl": lambda: b'{"text": ' + b"9" * 100_000 + b"}",
    "number.jsonl": lambda: b'{"text": 1}',
    "pickle.txt": lambda: pickle.dumps(_Touches()),
    "pickle.parquet": lambda: pickle.dumps(_Touches()),
}
VECTORS: Mapping[str, Callable[[], bytes]] = {
    "object.npy": lambda: _saved(np.array([[_Touches()]], object)),
    "pickle.npy": lambda: pickle.dumps(_Touches()),
    "pickle.parquet": lambda: pickle.dumps(_Touches()),
    "call.npy": lambda: _npy_of("(1, 12)", _CALL),
    "call-of-shape.npy": lambda: _npy_of(f"({_CALL}, 12)"),
    "record.npy": lambda: _npy_of("(1, 12)", "[('a', '<f4'), ('b', '|O')]"),
    "large.npy": lambda: _npy_of("(4611686018427387904, 12)"),
    "larger-than-its-file.npy": lambda: _npy_of("(1000000000, 12)"),
    "empty-rows.npy": lambda: _npy_of("(9223372036854775807, 0)"),
    "deep.npy": lambda: _npy("(" * 9000),
    "long-header.npy": lambda: b"\x93NUMPY\x03\x00\xff\xff\xff\xff{",
    "archive.npy": lambda: _zipped(200 << 20),
    "archive.npz": lambda: _zipped(200 << 20),
    "deep.jsonl": lambda: b"[" * 1_000_000,
    "line.jsonl": lambda: b"[" + b"1," * (_LONG_LINE // 2),
}
TENSORS: Mapping[str, bytes] = {
    "long header": _safetensors(b"{}")[:7] + b"\x10{}",
    "cut": _safetensors({"mean": {"dtype": "F64", "shape": [12], "data_offsets": [0, 96]}}),
    "beyond": _safetensors({"mean": {"dtype": "F64", "shape": [1], "data_offsets": [8, 16]}}, bytes(8)),
    "overlap": _safetensors(
        {name: {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]} for name in ("mean", "W")}, bytes(8)
    ),
    "shape": _safetensors({"mean": {"dtype": "F64", "shape": [2**60, 16], "data_offsets": [0, 8]}}, bytes(8)),
    "empty": _safetensors({"mean": {"dtype": "F64", "shape": [0, 2**62], "data_offsets": [0, 0]}}),
    "deep": _safetensors(b"[" * 100_000),
    "pickle": pickle.dumps(_Touches()),
    "nothing": b"",
}
