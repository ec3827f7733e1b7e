"""Load modules and tables of sentence-transformers, and compute vectors with it: what people mean by its models."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from msgspec import UNSET
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from whiten_export.graph.builder import HiddenStates, describe
from whiten_export.graph.inputs import look_up, table_config
from whiten_export.proof.gate import Case, PublishedVectors, longest_texts
from whiten_export.proof.reference import ACTIVATIONS, Dense, LayerNorm, Reference, Truncate
from whiten_export.sources.checkpoint import Checkpoint, source_record, way_to_code
from whiten_export.sources.config import WITHOUT_UNKNOWN, plain_attention
from whiten_export.sources.files import ADAPTER_CONFIG, NETWORK_WEIGHTS, module_weights, read_settings
from whiten_export.sources.model import TableReference, TokenModel
from whiten_export.sources.network import check_numbers, explaining, one_thread, quiet
from whiten_export.sources.own_code import restore_buffers, restore_weights
from whiten_export.sources.published import Published, Stored
from whiten_export.sources.tokenizer import SourceTokenizer, missing_tokenizer, obey_ends, read_backend
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.records import Pooling
from whiten_runtime.errors import UsageError, WhitenError
from whiten_runtime.files.replacing import written_as
from whiten_runtime.inference.options import with_prompt

_TORCH = "torch.nn.modules."


def load_modules(published: Published) -> Published:
    """Load the modules of a folder that have weights, and the weights of its layers."""
    modules = (load_module(one.kind, one.folder) if isinstance(one, Stored) else one for one in published.modules)
    loaded = replace(published, modules=tuple(modules))
    if published.layer_pooling is None:
        return loaded
    first, weights = load_layer_weights(published.layer_pooling)
    return replace(loaded, first_layer=first, layer_weights=weights)


def load_module(kind: str, folder: Path) -> Dense | LayerNorm:
    """Load a Dense or a LayerNorm."""
    if kind == "LayerNorm":
        norm = _load(kind, folder).norm
        return LayerNorm(_array(norm.weight), _array(norm.bias), norm.eps)
    path = folder / "config.json"
    # sentence-transformers takes Tanh in place of an activation function that is not torch's
    activation = str(read_settings(path).get("activation_function", f"{_TORCH}activation.Tanh"))
    name = activation.rsplit(".", 1)[-1]
    if not activation.startswith(_TORCH) or name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise WhitenError(f"{path}: activation_function '{activation}' is not supported; wanted {known} of torch.nn")
    loaded = _load(kind, folder)
    for place in ("module_input_name", "module_output_name"):
        if getattr(loaded, place) != "sentence_embedding":
            raise WhitenError(f"{path}: {place} is not sentence_embedding, which is not supported")
    residual = None
    if getattr(loaded, "use_residual", False):
        same = loaded.in_features == loaded.out_features
        residual = np.eye(loaded.in_features, dtype=np.float32) if same else _transposed(loaded.residual.weight)
    bias = _array(loaded.linear.bias) if loaded.bias else None
    return Dense(_transposed(loaded.linear.weight), bias, name, residual)


def load_layer_weights(folder: Path) -> tuple[int, tuple[float, ...]]:
    """Load a WeightedLayerPooling, and return its first layer and the weights of the layers."""
    loaded = _load("WeightedLayerPooling", folder)
    weights = tuple(map(float, _array(loaded.layer_weights)))
    if not sum(weights):
        raise WhitenError(f"{module_weights(folder)}: the layer weights sum to 0, so their average does not exist")
    return int(loaded.layer_start), weights


def load_table(folder: Path) -> NDArray[np.float32]:
    """Load the table of a StaticEmbedding, float32 [number of tokens, d]."""
    return _array(_load("StaticEmbedding", folder).embedding.weight)


def load_model2vec(folder: Path) -> NDArray[np.float32]:
    """Load the table of a folder of model2vec, float32 [number of tokens, d].

    A token has the row that `mapping` gives, times its weight; rows may be int8 or float16.
    """
    file = folder / NETWORK_WEIGHTS[0]
    with explaining([file]):
        tensors = load_file(file)
    table = tensors["embeddings"].astype(np.float32)
    if "mapping" in tensors:
        table = table[tensors["mapping"]]
    if "weights" in tensors:
        table *= tensors["weights"].astype(np.float32)[:, None]
    if not np.isfinite(table).all():
        raise WhitenError(f"{file}: holds NaN or infinity; copy the model again, or use another checkpoint of it")
    return table


def _load(kind: str, folder: Path) -> Any:
    from sentence_transformers.sentence_transformer import modules

    own, file = getattr(modules, kind), module_weights(folder)
    if kind != "StaticEmbedding":  # the config.json beside a table is model2vec's
        path = folder / "config.json"
        known = {*own.config_keys, *getattr(own, "config_key_renames", ())}
        if unknown := read_settings(path).keys() - known:
            installed = version("sentence-transformers")
            raise WhitenError(
                f"{path}: has the setting '{min(unknown)}', which is not supported by sentence-transformers "
                f"{installed}; install a newer one, if that has it; wanted {', '.join(sorted(known))}"
            )
    try:
        with quiet(), explaining([file]):
            loaded = own.load(str(folder))
    except WhitenError:
        raise
    except Exception as error:  # its exceptions share no base class
        reason = " ".join(str(error).split())[:300]
        raise WhitenError(
            f"{folder}: sentence-transformers cannot load this {kind} ({reason}); copy the model again"
        ) from error
    check_numbers(loaded, [file])
    return loaded


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
    published = checkpoint.published
    assert published is not None
    try:
        with quiet(), one_thread(), _loadable(checkpoint) as root:
            model = _open(root, checkpoint, trust_remote_code, device)
            model.float().eval()
            if not published.include_prompt:  # which the files of an INSTRUCTOR do not say
                model.set_pooling_include_prompt(False)
            table = model[0].tokenizer if published.static else None
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
                for case in cases
                if not case.long
            ]
            read = [model.preprocess([text])["input_ids"].flatten().tolist() for text, _ in longest_texts(cases)]
    except WhitenError:
        raise
    except Exception as error:  # its exceptions share no base class
        reason = " ".join(str(error).split())
        if not trust_remote_code and "trust_remote_code" in reason:
            raise UsageError(f"'{checkpoint.model}' {way_to_code(checkpoint, reason)}") from error
        raise WhitenError(f"sentence-transformers cannot load '{checkpoint.model}': {reason[:300]}") from error
    name = f"sentence-transformers {version('sentence-transformers')}, float32"
    for case, part in zip((case for case in cases if not case.long), vectors, strict=True):
        for text, vector in zip(case.texts, part, strict=True):
            if not np.isfinite(vector).all():
                prompt = f", with the prompt {case.prompt[:40]!r}" if case.prompt else ""
                raise WhitenError(
                    f"{name} gives NaN or infinity for {text[:40]!r}{prompt}, so '{checkpoint.model}' cannot be proven "
                    "against it"
                )
    return PublishedVectors(name, tuple(np.asarray(part, np.float64) for part in vectors), read)


def _open(root: Path, checkpoint: Checkpoint, trust_remote_code: bool, device: str) -> Any:
    """Open a folder; of a Router, the modules of the chosen route alone, as those of others may be code or pickles."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    published, place = checkpoint.published, checkpoint.root or checkpoint.directory
    assert published is not None
    options = {
        "trust_remote_code": trust_remote_code,
        "local_files_only": True,
        "model_kwargs": {"dtype": torch.float32, "device_map": None} | plain_attention(checkpoint),
    }
    if published.route is None:
        return SentenceTransformer(str(root), device=device, **options)
    chosen = [
        getattr(modules, step.kind).load(str(root), subfolder=step.folder.relative_to(place).as_posix(), **options)
        for step in published.steps
    ]
    width = next((module.dimension for module in published.modules if isinstance(module, Truncate)), None)
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


_LENGTH = 1 << 20
"""Maximum number of tokens of a text where the tokenizer has none: sentence-transformers then takes any number."""


class StaticEmbedding(TokenModel):
    """Reads a table of token vectors and its tokenizer. No special tokens are added to a text."""

    def __init__(self, checkpoint: Checkpoint, device: str) -> None:
        self.checkpoint, self._device = checkpoint, device
        self.tokenizer = _tokenizer(checkpoint)
        published = checkpoint.published
        alone = published is not None and published.without_unknown
        self._table = (load_model2vec if alone else load_table)(checkpoint.directory)
        self.vocab_size = len(self._table)
        width = self._table.shape[1]
        network = WITHOUT_UNKNOWN if alone else UNSET
        self.record = source_record(checkpoint, "static", 0, width, network_sha256=(network, UNSET))
        self.client_config = table_config(self._table)
        self._unknown = self.tokenizer.unknown_token_id if alone else None
        if alone and published is not None and published.max_seq_length is not None:
            self.letters = int(np.median([len(token) for token in Tokenizer.from_str(self.tokenizer.json).get_vocab()]))

    def hidden_states(self, layers: tuple[int, ...], pooling: Pooling) -> HiddenStates:
        """Build a graph that looks up the vector of each token; the mean of model2vec is over the known ones."""
        builder, state = look_up(self._table, "static")
        if self._unknown is None or pooling != "mean":
            return HiddenStates(builder.close(state), (state,))
        ids, mask = builder.input("input_ids"), builder.input("attention_mask")
        unknown = builder.op("Equal", ids, builder.constant("static.unknown", np.int64(self._unknown)))
        counted = builder.float32(builder.op("And", builder.op("Not", unknown), builder.boolean(mask)))
        count = builder.op("ReduceSum", counted, builder.integers(1), keepdims=1)
        shares = builder.op("Div", counted, builder.op("Max", count, builder.scalar(1)))
        describe(shares, "token_shares", "batch_size", "sequence_length")
        return HiddenStates(builder.close(state, shares), (state,), shares)

    def reference(self, layers: tuple[int, ...], pooling: Pooling) -> Reference:
        """Return the same computation on the arrays, in float64."""
        if self._unknown is None or pooling != "mean":
            return TableReference(self._table, pooling)
        return TableReference(self._table, pooling, (np.arange(self.vocab_size) != self._unknown).astype(np.float64))

    def published(self, cases: Sequence[Case], max_seq_length: int | None) -> PublishedVectors | None:
        """Return the vectors of sentence-transformers; for files of model2vec alone, its own, where it is installed."""
        if self._unknown is not None:
            return encode_by_model2vec(self.checkpoint, cases, max_seq_length, self.letters)
        return encode_published(self.checkpoint, cases, max_seq_length, False, self._device)


_MORE = " and other words that no vector may show"


def encode_by_model2vec(
    checkpoint: Checkpoint, cases: Sequence[Case], max_seq_length: int | None, letters: int | None
) -> PublishedVectors | None:
    """Embed texts with model2vec, each alone; None where it is not installed.

    Texts of as many letters as it reads get more of them, which it has to cut.
    """
    try:
        from model2vec import StaticModel
    except ImportError:
        return None
    model = StaticModel.from_pretrained(checkpoint.directory)
    model.embedding = model.embedding.astype(np.float32)  # it would add float16 in float16
    model.max_length = max_seq_length or model.max_length
    most = None if letters is None else letters * model.max_length
    texts = (with_prompt(case.prompt, case.texts) for case in cases)
    longer = ([text + _MORE if len(text) == most else text for text in part] for part in texts)
    vectors = tuple(model.encode(part).astype(np.float64) for part in longer)
    return PublishedVectors(f"model2vec {version('model2vec')}, float32", vectors)


def _tokenizer(checkpoint: Checkpoint) -> SourceTokenizer:
    path = checkpoint.directory / TOKENIZER_FILE
    if not path.is_file():
        raise missing_tokenizer(checkpoint)
    own = read_backend(path)
    own.no_padding()
    own.no_truncation()
    content = json.loads(path.read_text("utf-8"))
    published = checkpoint.published  # model2vec cuts texts by its config.json alone, and from the right
    truncation = None if published and published.without_unknown else content.get("truncation")
    from_left = truncation is not None and truncation.get("direction") == "Left"
    content["post_processor"] = None

    def own_ids(texts: Sequence[str], max_length: int) -> list[list[int]]:
        rows = [encoding.ids for encoding in own.encode_batch(list(texts), add_special_tokens=False)]
        return [row[max(0, len(row) - max_length) :] if from_left else row[:max_length] for row in rows]

    unknown = getattr(own.model, "unk_token", None)
    if "unk_id" in content["model"]:  # Unigram names it by its place
        unknown = own.id_to_token(content["model"]["unk_id"])
    unknown_id = None if unknown is None else own.token_to_id(unknown)
    return SourceTokenizer(
        json=json.dumps(content, ensure_ascii=False),
        own_ids=own_ids,
        pad_token_id=0,
        specials={"pad_token": str(own.id_to_token(0))} | ({} if unknown is None else {"unk_token": unknown}),
        unknown_token_id=-1 if unknown_id is None else unknown_id,
        stated_length=int(truncation["max_length"]) if truncation else _LENGTH,
        truncation_side="left" if from_left else "right",
    )
