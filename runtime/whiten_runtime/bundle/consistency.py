"""Hold a manifest against what else a bundle says: graph, tokenizer, whitening, probes, files for other programs.

Only what is provable counts: a fact that is missing, as in bundles of older versions, contradicts nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from whiten_runtime.bundle.array_shapes import Array
from whiten_runtime.bundle.bundle import (
    EXTERNAL_DATA_FILE,
    MODEL_FILE,
    PROBE_VECTORS_FILE,
    PROBES_FILE,
    WHITENING_FILE,
)
from whiten_runtime.bundle.client_files import SEPARATE_WEIGHTS, TRANSFORMERS_JS
from whiten_runtime.bundle.graph_claims import MEAN, WEIGHT, GraphClaims
from whiten_runtime.bundle.graph_facts import GraphFacts
from whiten_runtime.bundle.graph_names import OUTPUT, UNWHITENED_OUTPUT
from whiten_runtime.bundle.manifest import Manifest, pooling_modes
from whiten_runtime.bundle.space import earlier_ids, space_id

TEMPLATE = "{text}"
"""Place of the text in a prompt that other programs are not told of."""

_CONFIG, _LENGTH, _TOKENIZER = "config.json", "sentence_bert_config.json", "tokenizer_config.json"
_PROMPTS, _WIDTH = "config_sentence_transformers.json", "1_Pooling/config.json"
CLIENT_CONFIGS = (_CONFIG, _LENGTH, _TOKENIZER, _PROMPTS, _WIDTH)
"""Files for other programs that repeat what the manifest says."""

_WIDTHS = "[unwhitened_dimension, dimension]"
_LONGEST, _MOST = 120, 3
"""Characters of a value, and contradictions, that a message has at most."""


@dataclass(frozen=True)
class TokenizerFacts:
    """Describes a tokenizer.

    Attributes:
        padding: id of the token that other programs are told to pad with; None if they are not told, or have no such.
    """

    padding: int | None


@dataclass(frozen=True)
class BundleFacts:
    """Holds what the files of a bundle say, besides its manifest.

    Attributes:
        graph: facts of the graph.
        claims: what the graph provably computes.
        whitening: arrays of whitening.safetensors.
        probes: arrays of probes.safetensors.
        texts: number of texts of probes.json; None without that file.
        clients: content of the files for other programs that are as the manifest lists them, by name.
    """

    graph: GraphFacts
    claims: GraphClaims
    whitening: Mapping[str, Array] = field(default_factory=dict)
    probes: Mapping[str, Array] = field(default_factory=dict)
    texts: int | None = None
    clients: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def contradictions(manifest: Manifest, facts: BundleFacts, unfinished: bool = False) -> list[str]:
    """Return every contradiction between a manifest and the other files of its bundle, each in words, with both values.

    Args:
        manifest: the manifest.
        facts: what the other files say.
        unfinished: whether the bundle is being made, so that nothing was proven yet.
    """
    return [
        *_of_ending(manifest, facts.graph, facts.claims),
        *_of_pooling(manifest, facts.claims),
        *_of_tokens(manifest, facts.claims),
        *_of_precision(manifest, facts.claims),
        *_of_arrays(manifest, facts),
        *_of_clients(manifest, facts.clients),
        *_of_source(manifest),
        *_within(manifest),
        *_of_files(manifest, unfinished),
    ]


def tokenizer_contradictions(manifest: Manifest, facts: TokenizerFacts) -> list[str]:
    """Return every contradiction between a manifest and the tokenizer of its bundle, as `contradictions` does."""
    what = f"the padding token of {_TOKENIZER} has the id {{}}"
    return [*_if_other("pad_token_id", manifest.pad_token_id, facts.padding, what)]


def _of_ending(manifest: Manifest, graph: GraphFacts, claims: GraphClaims) -> Iterator[str]:
    """Yield contradictions of whitening, widths, outputs and what follows the whitening."""
    width, dimension = manifest.unwhitened_width, manifest.dimension
    if claims.mapped != (manifest.whitening is not None):
        method = None if manifest.whitening is None else manifest.whitening.method
        verb = "has" if claims.mapped else "lacks"
        yield _but("whitening", method, f"the graph {verb} Sub and MatMul with {MEAN} and {WEIGHT}")
    elif claims.mapped:
        for name, shape in ((MEAN, (width,)), (WEIGHT, (width, dimension))):
            tensor = graph.tensors.get(name)
            if tensor is not None and tensor.shape != shape:
                yield _but(_WIDTHS, [width, dimension], f"the graph's {name} has shape {list(tensor.shape)}")
    elif width != dimension:
        yield _but("dimension", dimension, f"there is no whitening, and the width before it is {width}")
    for name, field_name, want in (
        (OUTPUT, "dimension", dimension),
        (UNWHITENED_OUTPUT, "unwhitened_dimension", width),
    ):
        output = graph.outputs.get(name)
        if output is not None and len(output.shape) == 2 and output.shape[1] not in (want, None):
            yield _but(field_name, want, f"the graph gives {output.shape[1]} dimensions as {name}")
    yield from _if_other("outputs", manifest.outputs, "both" if claims.both else "whitened", "the graph gives {}")
    yield from _if_other("opset", manifest.opset, graph.opset, "the graph is of opset {}")
    normalized = manifest.normalize or _ends_normalized(manifest)
    ends = {True: "the graph ends with a division by the norm", False: "the graph divides by no norm at its end"}
    yield from _if_other("normalize", normalized, claims.normalized, ends)
    rounded = None if claims.rounded is None else "int8" if claims.rounded else "float32"
    yield from _if_other("vectors", manifest.vectors, rounded, "the graph ends with vectors of {}")


def _of_pooling(manifest: Manifest, claims: GraphClaims) -> Iterator[str]:
    layers = None if claims.layers is None else list(claims.layers)
    yield from _if_other("layers", list(manifest.layers), layers, "the graph pools the layers {}")
    if manifest.pooling is not None and claims.modes is not None and claims.modes != pooling_modes(manifest.pooling):
        yield _but("pooling", manifest.pooling, f"the graph's is {_shown('+'.join(claims.modes))}")
    pools = {True: "the graph pools the tokens of a prompt", False: "the graph leaves the tokens of a prompt out"}
    pooled = None if claims.prompts_apart is None else not claims.prompts_apart
    yield from _if_other("include_prompt", manifest.include_prompt, pooled, pools)


def _of_tokens(manifest: Manifest, claims: GraphClaims) -> Iterator[str]:
    length, pad = manifest.max_seq_length, manifest.pad_token_id
    yield from _if_other("max_seq_length", length, claims.positions, "the graph has a table of {} positions")
    positions = claims.network_positions
    if positions is not None and length > positions:
        yield _but("max_seq_length", length, f"the network has a table of {positions} positions")
    if claims.rows is not None and pad >= claims.rows:
        yield _but("pad_token_id", pad, f"the graph has embeddings of {claims.rows} tokens")


def _of_precision(manifest: Manifest, claims: GraphClaims) -> Iterator[str]:
    found = "int8" if claims.quantized else "fp16" if claims.halved else "fp32" if claims.large else None
    count = claims.quantized or claims.halved or claims.large
    yield from _if_other("precision", manifest.precision, found, f"the graph holds {count} weights of {{}}")
    if manifest.quantization is not None and manifest.precision != "int8":
        yield _but("precision", manifest.precision, "quantization describes an int8 graph")


def _of_arrays(manifest: Manifest, facts: BundleFacts) -> Iterator[str]:
    """Yield contradictions of whitening.safetensors and of the probes."""
    width, dimension = manifest.unwhitened_width, manifest.dimension
    for name, shape in (("mean", (width,)), ("W", (width, dimension))):
        held = facts.whitening.get(name)
        if held is not None and held.shape != shape:
            yield _but(_WIDTHS, [width, dimension], f"{WHITENING_FILE} holds {name} of {_of_shape(held)}")
    if not facts.probes:
        return
    count = facts.texts
    if count is None:
        held = facts.probes.get("unwhitened")
        count = held.shape[0] if held is not None and held.shape else 0
    if not count:
        yield "the bundle has no probe, but at least one is wanted"
    for name, columns in (("embeddings", dimension), ("unwhitened", width)):
        held = facts.probes.get(name)
        if held != Array("F64", (count, columns)):
            stated = f"{PROBES_FILE} has {facts.texts} texts, and " if facts.texts is not None else ""
            field_name = "dimension" if name == "embeddings" else "unwhitened_dimension"
            yield stated + _but(field_name, columns, f"{PROBE_VECTORS_FILE} holds {name} of {_of_shape(held)}")


def _of_clients(manifest: Manifest, clients: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield contradictions of the files for other programs, as far as these are still those of the export."""
    length = manifest.max_seq_length
    told = {name: text for name, text in manifest.prompts.items() if manifest.include_prompt and TEMPLATE not in text}
    default = manifest.default_prompt_name if manifest.default_prompt_name in told else None
    for file, key, name, stated in (
        (_LENGTH, "max_seq_length", "max_seq_length", length),
        (_TOKENIZER, "truncation_side", "truncation_side", manifest.truncation_side),
        (_PROMPTS, "similarity_fn_name", "similarity_fn_name", manifest.similarity_fn_name),
        (_PROMPTS, "prompts", "prompts", told),
        (_PROMPTS, "default_prompt_name", "default_prompt_name", default),
        (_WIDTH, "word_embedding_dimension", "dimension", manifest.dimension),
    ):
        content = clients.get(file, {})
        if key in content and content[key] != stated:
            yield _but(name, stated, f"{file} says {_shown(content[key])}")
    positions = clients.get(_CONFIG, {}).get("max_position_embeddings")
    if isinstance(positions, int) and 0 < positions < length:
        yield _but("max_seq_length", length, f"{_CONFIG} says max_position_embeddings {positions}")
    browsers = clients.get(_CONFIG, {}).get(TRANSFORMERS_JS)
    separate = browsers.get(SEPARATE_WEIGHTS) if isinstance(browsers, dict) else None
    if separate == {MODEL_FILE.rpartition("/")[2]: 1} and EXTERNAL_DATA_FILE not in manifest.files:
        yield f"files lack {EXTERNAL_DATA_FILE}, but {_CONFIG} says {SEPARATE_WEIGHTS} {_shown(separate)}"


def _of_source(manifest: Manifest) -> Iterator[str]:
    """Yield contradictions of the layers and the width with those of the whole model."""
    layers, blocks = list(manifest.layers), manifest.source.num_hidden_layers
    if any(first >= second for first, second in pairwise(layers)):
        yield _but("layers", layers, "they ascend in every bundle")
    if layers and max(layers) > blocks:
        yield _but("layers", layers, f"source.num_hidden_layers is {blocks}")
    modes = () if manifest.pooling is None else pooling_modes(manifest.pooling)
    width = manifest.source.hidden_size * len(modes)
    if modes and not manifest.modules and manifest.unwhitened_width != width:
        hidden = f"{len(modes)} x source.hidden_size is {width}, and there are no modules"
        yield _but("unwhitened_dimension", manifest.unwhitened_width, hidden)


def _within(manifest: Manifest) -> Iterator[str]:
    """Yield what other fields of a manifest say against each other."""
    if manifest.space is not None and manifest.space not in earlier_ids(manifest):
        what = "that of its layers, pooling, prompts, whitening and other fields is {}"
        yield from _if_other("space", manifest.space, space_id(manifest), what)
    if manifest.target == "cuda" and manifest.precision == "int8":
        yield _but("target", "cuda", "precision is int8, which is for CPUs")
    if manifest.target == "cuda" and manifest.input == "vectors":
        yield _but("target", "cuda", "input is vectors, whose graphs are for CPUs")
    if manifest.outputs == "both" and manifest.whitening is None:
        yield _but("outputs", "both", "there is no whitening")
    if any(not 0 < one <= manifest.dimension for one in manifest.matryoshka_dimensions):
        yield _but("matryoshka_dimensions", list(manifest.matryoshka_dimensions), f"dimension is {manifest.dimension}")


def _of_files(manifest: Manifest, unfinished: bool) -> Iterator[str]:
    """Yield files that must be listed or must not be, and a proof that is missing."""
    if manifest.parity is None and not unfinished:
        yield _but("parity", None, "every finished bundle was compared with its reference")
    wanted = {PROBE_VECTORS_FILE: True, PROBES_FILE: manifest.input == "text"}
    wanted[WHITENING_FILE] = manifest.whitening is not None
    for name, must in wanted.items():
        if must != (name in manifest.files):
            verb, why = ("lacks", "must") if must else ("lists", "must not")
            yield f"files {verb} {name}, but {why} where input is {manifest.input} and whitening {_kind(manifest)}"


def _ends_normalized(manifest: Manifest) -> bool:
    """Return whether a last module divides by the norm, and nothing follows it."""
    return manifest.whitening is None and manifest.modules[-1:] == ("Normalize",) and manifest.vectors == "float32"


def _kind(manifest: Manifest) -> str:
    return "null" if manifest.whitening is None else manifest.whitening.method


def _of_shape(held: Array | None) -> str:
    return "nothing" if held is None else f"{held.dtype} {list(held.shape)}"


def _if_other(name: str, stated: object, found: object, words: str | Mapping[bool, str]) -> Iterator[str]:
    """Yield a contradiction if a value is known and another; `words` say what was found, with its value for {}."""
    if found is not None and found != stated:
        yield _but(name, stated, words.format(_shown(found)) if isinstance(words, str) else words[bool(found)])


def _but(name: str, stated: object, found: str) -> str:
    return f"{name} is {_shown(stated)}, but {found}"


def _shown(value: object) -> str:
    """Return a value on one line, as JSON writes it, cut where it is long."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def in_one_line(found: Sequence[str]) -> str:
    """Join the first contradictions to one line."""
    return "; ".join(found[:_MOST]) + (f"; and {len(found) - _MOST} more" if len(found) > _MOST else "")
