"""Define what an export of a model starts from: `TokenModel`, which computes hidden states from token ids."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from whiten_export.graph.build import HiddenStates
from whiten_export.graph.ends import OPSET, pool_graph
from whiten_export.graph.poolings import pool, weighted_sum
from whiten_export.proof.gate import Case, Definition, Expected, PublishedVectors, compute_expected
from whiten_export.proof.reference import Composition, Float64Array, Module, Reference
from whiten_export.sources.checkpoint import Authors, Checkpoint
from whiten_export.sources.families import BatchLimit
from whiten_export.sources.tokenizer import SourceTokenizer, tokenizer_sha256
from whiten_runtime.bundle.manifest import FORMAT_VERSION, Manifest, Pooling
from whiten_runtime.bundle.manifest import Source as SourceRecord
from whiten_runtime.errors import UsageError
from whiten_runtime.reporter import Reporter

SENTENCE_VECTOR = re.compile("embed|sentence|vec", re.IGNORECASE)
"""Names of outputs that a graph's makers call a sentence vector."""


@dataclass(frozen=True)
class WeightCounts:
    """Numbers of weights of a model, whatever their precision."""

    loaded: int  # those that an export loads
    exported: int  # those that the chosen layers need, which are in the bundle
    score_heads: int = 0  # heads of attention that holds the scores of all pairs of tokens; 0 where it is fused


class TokenModel:
    """Computes hidden states from token ids. The defaults are those of a table of vectors, without a network."""

    checkpoint: Checkpoint  # files of the model, and how its authors make a vector of a text
    record: SourceRecord  # description of the model, for the manifest
    tokenizer: SourceTokenizer  # tokenizer of the model
    layers: tuple[int, ...] = (0,)  # indices of the available hidden states, ascending
    default_layers: tuple[int, ...] = (0,)  # hidden states to average by default
    positions: int | None = None  # number of tokens that its table of positions has room for; None without a table
    stated_positions: int | None = None  # number of positions that its config states; None if it does not
    letters: int | None = None  # letters of a text that its authors' program reads for each token; None for any number
    batch_limit: BatchLimit | None = None  # length from which a text changes the vectors of its batch, if any
    vocab_size: int  # number of token ids
    expert_bytes: int = 0  # bytes of the weights of experts that the graph gathers for each token
    client_config: Mapping[str, Any]  # content of `config.json` for other programs
    supported: bool = True  # whether its family is in the registry
    notes: tuple[str, ...] = ()  # what an export warns of, where its files name what is not there
    own_outputs: tuple[str, ...] = ()  # outputs of its own graph that are one vector a text
    versions: Mapping[str, str] = MappingProxyType({})  # versions of programs that took part where it was recorded

    @cached_property
    def draft(self) -> Manifest:
        """The manifest of a bundle that makes vectors as the model's authors do, else by default; nothing is whitened.

        Its length is 0: it depends on what is asked for.
        """
        checkpoint, authors = self.checkpoint, self.checkpoint.authors or Authors()
        draft = Manifest(
            format_version=FORMAT_VERSION,
            name=checkpoint.name,
            source=self.record,
            layers=self._authors_layers() if self.embeds else self.default_layers,
            layer_weights=authors.layer_weights,
            pooling=checkpoint.pooling,
            include_prompt=authors.include_prompt,
            modules=tuple(map(str, authors.modules)),
            prompts=dict(authors.prompts),
            default_prompt_name=authors.default_prompt_name,
            truncation_side=self.tokenizer.truncation_side,
            similarity_fn_name=authors.similarity_fn_name,
            matryoshka_dimensions=authors.matryoshka_dimensions,
            route=authors.route,
            whitening=None,
            normalize=authors.normalize,
            dimension=0,
            max_seq_length=0,
            tokenizer_sha256=tokenizer_sha256(self.tokenizer.json),
            pad_token_id=self.tokenizer.pad_token_id,
            precision="fp32",
            opset=OPSET,
            versions={},
            parity=None,
            files={},
        )
        return self.sized(draft)

    def sized(self, manifest: Manifest) -> Manifest:
        """Return a manifest with the number of coordinates that its pooling and its modules give."""
        width = self.composition(manifest).width(self.record.hidden_size)
        unwhitened = None if width == self.record.hidden_size else width
        return msgspec.structs.replace(manifest, dimension=width, unwhitened_dimension=unwhitened)

    @property
    def embeds(self) -> bool:
        """Whether its authors make sentence vectors of it, as the draft says."""
        return self.checkpoint.authors is not None

    def _authors_layers(self) -> tuple[int, ...]:
        """Return the layers of which the model's authors make a vector."""
        authors, count = self.checkpoint.authors, self.record.num_hidden_layers
        assert authors is not None
        if authors.layer_weights is None:
            return (count,)
        if authors.layers[-1] != count:
            raise UsageError(
                f"'{self.checkpoint.model}' weighs {len(authors.layers)} layers from layer {authors.layers[0]} on, but "
                f"its network has {count}; wanted {count + 1 - authors.layers[0]} weights"
            )
        return authors.layers

    def is_authors(self, layers: tuple[int, ...] | None, pooling: Pooling | None) -> bool:
        """Return whether layers and pooling are those of which the model's authors make sentence vectors."""
        return self.embeds and (layers, pooling) == (self.draft.layers, self.draft.pooling)

    def composition(self, manifest: Manifest) -> Composition:
        """Return how hidden states become the vector that is whitened."""
        assert manifest.pooling is not None
        modules = self.checkpoint.authors.modules if manifest.modules and self.checkpoint.authors else ()
        return Composition(manifest.layers, manifest.pooling, manifest.layer_weights, manifest.include_prompt, modules)

    def check_choice(self, layers: tuple[int, ...], pooling: Pooling, max_length: int) -> None:
        """Check that these layers, this pooling and this length can be exported."""

    def graph(self, manifest: Manifest) -> ir.Model:
        """Return the graph up to the vector before whitening."""
        composition = self.composition(manifest)
        hidden = self.hidden_states(composition.layers, composition.pooling)
        return pool_graph(hidden, composition, self.record.hidden_size)

    def expected(self, manifest: Manifest, cases: Sequence[Case], report: Reporter) -> Expected:
        """Compute the reference's vectors of the cases, before whitening."""
        composition = self.composition(manifest)
        reference = self.reference(composition.layers, composition.pooling)
        return compute_expected(Definition(reference, composition, self.record.hidden_size), cases, report)

    def count_weights(self, layers: tuple[int, ...]) -> WeightCounts:
        """Count the weights of the model and those that layers need, without loading them; of a table, all."""
        table = self.vocab_size * self.record.hidden_size
        return WeightCounts(table, table)

    def hidden_states(self, layers: tuple[int, ...], pooling: Pooling) -> HiddenStates:
        """Return the graph that computes these layers, without nodes that they do not need."""
        raise NotImplementedError

    def reference(self, layers: tuple[int, ...], pooling: Pooling) -> Reference:
        """Return the reference of hidden states; after `hidden_states` of the same layers, once that graph is saved."""
        raise NotImplementedError

    def own_vectors(self, output: str, rows: Sequence[Sequence[int]]) -> Float64Array:
        """Return the vectors [n, k] that its own graph gives in an output for n texts, by their token ids."""
        raise NotImplementedError

    def published(self, cases: Sequence[Case], max_seq_length: int | None) -> PublishedVectors | None:
        """Return the vectors of the program that the model was published for; None if there is no such program.

        `max_seq_length` is the number of tokens at which it is to cut texts; None for its own number.
        """
        return None


def parameters_sha256(network: str, modules: Sequence[Module]) -> str:
    """Compute the SHA-256 of a network's parameters, by their hash, and of the modules behind its pooling."""
    digest = hashlib.sha256(network.encode())
    for module in modules:
        digest.update(str(module).encode())
        for value in vars(module).values():
            digest.update(value.tobytes() if isinstance(value, np.ndarray) else str(value).encode())
    return digest.hexdigest()


class TableReference(Reference):
    """Pools the vectors of a table, in numpy and float64."""

    def __init__(self, table: NDArray[np.float32], pooling: Pooling, weights: Float64Array | None = None) -> None:
        """Take a table [number of tokens, d].

        With a weight for each token, a text has the sum of weight times vector over its tokens of another weight than
        0, divided by their number; zeros if there are none.
        """
        self._table, self._pooling, self._weights = table, pooling, weights
        self.name = f"numpy {np.__version__}, float64"

    def pooled(self, input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64]) -> Float64Array:
        """Return the pooled vectors of the tokens, [1, batch_size, d]."""
        if self._weights is None:
            return pool([self._table[input_ids]], attention_mask, self._pooling)
        weights = self._weights[input_ids] * (attention_mask == 1)
        count = np.count_nonzero(weights, axis=1)[:, None]
        return weighted_sum(self._table[input_ids], weights / np.maximum(count, 1))[None]


def resolve_layers(
    layers: tuple[int, ...], num_hidden_layers: int, available: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Return sorted indices into the hidden states; negative ones count from the top."""
    resolved = []
    for layer in layers:
        index = layer + num_hidden_layers + 1 if layer < 0 else layer
        if not 0 <= index <= num_hidden_layers:
            raise UsageError(
                f"layer {layer} does not exist: the model has layers 0 (embeddings) to {num_hidden_layers}, "
                f"or -1 to {-num_hidden_layers - 1} from the top"
            )
        if index in resolved:
            raise UsageError(f"layer {index} is given twice; name each layer once")
        if available is not None and index not in available:
            raise UsageError(
                f"layer {index} cannot be exported: this model gives only {', '.join(map(str, available))}; choose one "
                "of them, or, of an ONNX graph, export it with all hidden states"
            )
        resolved.append(index)
    return tuple(sorted(resolved))
