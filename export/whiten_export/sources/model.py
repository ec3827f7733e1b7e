"""Define what an export starts from: `Source`, and `TokenModel` for those that compute hidden states from token ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import onnx_ir as ir

from whiten_export.graph.builder import HiddenStates
from whiten_export.graph.head import OPSET, pool_graph
from whiten_export.proof.gate import Case, Definition, Expected, PublishedVectors, compute_expected
from whiten_export.proof.reference import Composition, Float64Array, Reference
from whiten_export.sources.describe.checkpoint import Checkpoint
from whiten_export.sources.describe.families import BatchLimit
from whiten_export.sources.describe.published import Published
from whiten_export.sources.describe.tokenizer_hash import tokenizer_sha256
from whiten_export.sources.describe.tokenizers import SourceTokenizer
from whiten_runtime.bundle.manifest import FORMAT_VERSION, Manifest
from whiten_runtime.bundle.records import Pooling
from whiten_runtime.bundle.records import Source as SourceRecord
from whiten_runtime.errors import UsageError
from whiten_runtime.reporter import Reporter
from whiten_whitening.statistics import Statistics


class Source:
    """Starts an export: a network, an ONNX encoder, a table of vectors, a bundle, or a file of vectors."""

    statistics: Statistics | None = None  # statistics of the vectors before whitening, where no corpus is embedded

    @property
    def draft(self) -> Manifest:
        """The manifest of a bundle that gives the vectors as they are published, stored or precomputed."""
        raise NotImplementedError

    def graph(self, manifest: Manifest) -> ir.Model:
        """Return the graph up to the vector before whitening."""
        raise NotImplementedError

    def expected(self, manifest: Manifest, cases: Sequence[Case], report: Reporter) -> Expected:
        """Return the reference's vectors before whitening: of the cases, or those that the source has stored."""
        raise NotImplementedError


@dataclass(frozen=True)
class WeightCounts:
    """Numbers of weights of a model, whatever their precision."""

    loaded: int  # those that an export loads
    exported: int  # those that the chosen layers need, which are in the bundle


class TokenModel(Source):
    """Computes hidden states from token ids. The defaults are those of a table of vectors, without a network."""

    checkpoint: Checkpoint  # files of the model, and how its authors make a vector of a text
    record: SourceRecord  # description of the model, for the manifest
    tokenizer: SourceTokenizer  # tokenizer of the model
    layers: tuple[int, ...] = (0,)  # indices of the available hidden states, ascending
    default_layers: tuple[int, ...] = (0,)  # hidden states to average by default
    positions: int | None = None  # maximum number of tokens that it has positions for; None for any number
    batch_limit: BatchLimit | None = None  # length from which a text changes the vectors of its batch, if any
    vocab_size: int  # number of token ids
    client_config: Mapping[str, Any]  # content of `config.json` for other programs
    supported: bool = True  # whether its family is in the registry
    own_outputs: tuple[str, ...] = ()  # outputs of its own graph that are one vector a text

    @cached_property
    def draft(self) -> Manifest:
        """The manifest of a bundle that makes vectors as the model's authors do, else by default; nothing is whitened.

        Its length is 0: it depends on what is asked for.
        """
        checkpoint, own = self.checkpoint, self.checkpoint.own
        layers = self.default_layers if own is None else _authors_layers(checkpoint.model, own, self.record)
        composition = Composition(
            layers,
            checkpoint.pooling,
            None if own is None else own.layer_weights,
            own is None or own.include_prompt,
            () if own is None else own.modules,
        )
        width = composition.width(self.record.hidden_size)
        return Manifest(
            format_version=FORMAT_VERSION,
            name=checkpoint.name,
            source=self.record,
            layers=layers,
            layer_weights=composition.layer_weights,
            pooling=composition.pooling,
            include_prompt=composition.include_prompt,
            modules=tuple(map(str, composition.modules)),
            unwhitened_dimension=None if width == self.record.hidden_size else width,
            prompts={} if own is None else dict(own.prompts),
            default_prompt_name=None if own is None else own.default_prompt_name,
            truncation_side=self.tokenizer.truncation_side,
            similarity_fn_name="cosine" if own is None else own.similarity_fn_name,
            matryoshka_dimensions=checkpoint.entry.dimensions if own is not None and checkpoint.entry else (),
            route=None if own is None else own.route,
            whitening=None,
            normalize=own is not None and own.normalize,
            dimension=width,
            max_seq_length=0,
            tokenizer_sha256=tokenizer_sha256(self.tokenizer.json),
            pad_token_id=self.tokenizer.pad_token_id,
            precision="fp32",
            opset=OPSET,
            versions={},
            parity=None,
            files={},
        )

    @property
    def embeds(self) -> bool:
        """Whether its authors make sentence vectors of it, as the draft says."""
        return self.checkpoint.own is not None

    def is_authors(self, layers: tuple[int, ...], pooling: Pooling | None) -> bool:
        """Return whether layers and pooling are those of which the model's authors make sentence vectors."""
        return self.embeds and (layers, pooling) == (self.draft.layers, self.draft.pooling)

    def composition(self, manifest: Manifest) -> Composition:
        """Return how hidden states become the vector that is whitened."""
        assert manifest.pooling is not None
        modules = self.checkpoint.own.modules if manifest.modules and self.checkpoint.own else ()
        return Composition(manifest.layers, manifest.pooling, manifest.layer_weights, manifest.include_prompt, modules)

    def graph(self, manifest: Manifest) -> ir.Model:
        """Return the graph up to the vector before whitening."""
        composition = self.composition(manifest)
        hidden = self.hidden_states(composition.layers, composition.pooling)
        return pool_graph(hidden, composition, self.record.hidden_size)

    def expected(self, manifest: Manifest, cases: Sequence[Case], report: Reporter) -> Expected:
        """Compute the reference's vectors of the cases, before whitening."""
        return compute_expected(self.definition(manifest), cases, report)

    def definition(self, manifest: Manifest) -> Definition:
        """Return what computes the reference of the vector before whitening."""
        composition = self.composition(manifest)
        reference = self.reference(composition.layers, composition.pooling)
        return Definition(reference, composition, self.record.hidden_size)

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

    def published(self, cases: Sequence[Case], max_seq_length: int) -> PublishedVectors | None:
        """Return the vectors of the program that the model was published for; None if there is no such program."""
        return None


def _authors_layers(model: str, own: Published, record: SourceRecord) -> tuple[int, ...]:
    """Return the layers of which a model's authors make a vector."""
    count = record.num_hidden_layers
    if own.first_layer is None or own.layer_weights is None:
        return (count,)
    layers = tuple(range(own.first_layer, count + 1))
    if len(own.layer_weights) != len(layers):
        raise UsageError(
            f"'{model}' weighs {len(own.layer_weights)} layers from layer {own.first_layer} on, but its "
            f"network has {count}; wanted {len(layers)} weights"
        )
    return layers
