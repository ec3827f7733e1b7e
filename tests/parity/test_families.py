"""Test every family against the full PyTorch model, pooled by numpy, with other batches than the export's own gate.

Tracing takes most of an export's time, and the full model most of the rest: both run once for each family. The real
command exports all layers that are tested here; their other combinations are built from the same trace.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
import transformers
from click.testing import Result
from packaging.version import Version
from safetensors.numpy import load_file
from torch import nn

from support.cli import ok
from support.corpus import NASTY, sentences
from support.families import FAMILIES, MAX_LENGTH, WIDENED, WIDENED_LAYERS, WIDTH
from support.graphs import additions_before_norms, default_session, fused
from support.vectors import worst
from whiten import Encoder, ParityError
from whiten_export.export import CALIBRATION_SENTENCES, export_bundle
from whiten_export.graph.attention import lower_attention
from whiten_export.graph.build import HiddenStates, save_graph, sum_residuals
from whiten_export.graph.ends import pool_graph, set_head
from whiten_export.graph.int8 import Vocabulary, calibration_texts, convert_to_int8
from whiten_export.graph.precision import halve_weights
from whiten_export.proof.reference import Composition
from whiten_export.recipe import Recipe
from whiten_export.sources.model import TokenModel
from whiten_export.sources.open_model import open_model
from whiten_export.sources.resolve import resolve
from whiten_runtime.bundle.bundle import MODEL_FILE, TOKENIZER_FILE
from whiten_runtime.bundle.graph import OUTPUT, UNWHITENED_OUTPUT, WRITTEN, scan_graph
from whiten_runtime.bundle.manifest import Pooling, Precision
from whiten_runtime.bundle.parity import GATES, compare
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.loading import open_engine
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.estimator import Whitening
from whiten_whitening.statistics import embed_float64

TEXTS = ["", "a", *sentences(40), "word " * 100, *NASTY]
CORPUS = sentences(800)
TRACED = (0, 1, WIDENED_LAYERS)
UNTRIED = ("deberta-v2",)  # exported all the same, with a warning
KINDS = ("bert", "albert", "deberta-v2", "t5", "modernbert", "llama")
"""One family of each kind of architecture: positions that are learned, shared blocks, disentangled attention, relative
biases, rotary positions with local attention, causal attention."""
CASES: list[tuple[tuple[int, ...], Pooling]] = [
    ((0,), "mean"),
    ((1,), "mean"),
    ((1,), "cls"),
    ((1, WIDENED_LAYERS), "mean"),
    ((1, WIDENED_LAYERS), "cls"),
    ((WIDENED_LAYERS,), "mean"),
    ((WIDENED_LAYERS,), "cls"),
    ((WIDENED_LAYERS,), "last"),
]


@dataclass(frozen=True)
class Exported:
    """Holds a family's checkpoint, the result of the real command, and the full PyTorch model's vectors of `TEXTS`."""

    family: str
    directory: Path
    result: Result
    bundle: Path
    model: TokenModel
    full_model: dict[Pooling, np.ndarray]  # [WIDENED_LAYERS + 1, texts, d]
    fits: dict[tuple[tuple[int, ...], Pooling, int], Whitening] = field(default_factory=dict)  # see `fitted`

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.bundle / TOKENIZER_FILE, MAX_LENGTH)

    def wanted(self, layers: tuple[int, ...], pooling: Pooling, mean: np.ndarray, weight: np.ndarray) -> np.ndarray:
        whitened: np.ndarray = (self.full_model[pooling][list(layers)].mean(axis=0) - mean) @ weight
        return whitened

    @cached_property
    def traced(self) -> onnx.ModelProto:
        """Return the graph of the layers `TRACED`, which is the same for all poolings."""
        return ir.to_proto(self.model.hidden_states(TRACED, "mean").model)

    def graph(self, layers: tuple[int, ...], pooling: Pooling) -> ir.Model:
        """Return the graph up to the vector before whitening."""
        model = ir.from_proto(self.traced)
        chosen = tuple(model.graph.outputs[TRACED.index(layer)] for layer in layers)
        return pool_graph(HiddenStates(model, chosen), Composition(layers, pooling), WIDTH * WIDENED)

    def fitted(self, graph: ir.Model, layers: tuple[int, ...], pooling: Pooling, dim: int, path: Path) -> Whitening:
        """Return the whitening of the graph of these layers, which is fitted once for all precisions."""
        key = layers, pooling, dim
        if key not in self.fits:
            self.fits[key] = Whitening(n_components=dim).fit(self.vectors(graph, CORPUS, UNWHITENED_OUTPUT, path))
        return self.fits[key]

    def vectors(self, graph: ir.Model, texts: list[str], value: str, path: Path) -> np.ndarray:
        lowered = graph.clone()
        lower_attention(lowered, MAX_LENGTH)
        save_graph(lowered, path)
        engine = open_engine(path, self.model.tokenizer.pad_token_id)
        found = embed_float64(texts, Embedder(self.tokenizer, engine, value))
        engine.close()
        return found


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in KINDS else pytest.mark.slow) for name in FAMILIES],
)
def exported(
    request: pytest.FixtureRequest, checkpoint: Callable[[str, int], Path], tmp_path_factory: pytest.TempPathFactory
) -> Exported:
    if request.param == "deberta" and Version(torch.__version__) < Version("2.13"):
        pytest.skip("PyTorch before 2.13 cannot trace DeBERTa; an export refuses it")
    directory, folder = checkpoint(request.param, WIDENED), tmp_path_factory.mktemp("exported")
    corpus, bundle = folder / "corpus.txt", folder / "bundle"
    corpus.write_text("\n".join(CORPUS), "utf-8")
    layers = ",".join(map(str, TRACED))
    result = ok("export", directory, "--layers", layers, "--corpus", corpus, "--out", bundle)
    model = open_model(resolve(str(directory)))
    return Exported(request.param, directory, result, bundle, model, full_model_vectors(directory))


def full_model_vectors(directory: Path) -> dict[Pooling, np.ndarray]:
    """Return vectors of all layers of the original model, pooled by numpy in float64."""
    tokenizer, network = loaded(directory)
    # MobileBERT mixes its neighbours' embeddings into a token's, padding's too: there every text is a batch of its own.
    parts = [[text] for text in TEXTS] if network.config.model_type == "mobilebert" else [TEXTS]
    pooled = [pooled_batch(tokenizer, network, part) for part in parts]
    return {pooling: np.concatenate([part[pooling] for part in pooled], axis=1) for pooling in pooled[0]}


def loaded(directory: Path) -> tuple[transformers.PreTrainedTokenizerBase, nn.Module]:
    """Load the tokenizer and the network as users of PyTorch do."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    config = transformers.AutoConfig.from_pretrained(directory)
    kind = transformers.T5EncoderModel if config.model_type == "t5" else transformers.AutoModel
    return tokenizer, kind.from_pretrained(directory, dtype=torch.float64).eval()


def pooled_batch(
    tokenizer: transformers.PreTrainedTokenizerBase, network: nn.Module, texts: list[str]
) -> dict[Pooling, np.ndarray]:
    """Pool a batch that transformers padded: [WIDENED_LAYERS + 1, texts, d], zeros for a text without tokens."""
    batch = tokenizer(texts, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
    with torch.no_grad():
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        output = network(**inputs, output_hidden_states=True)
    # transformers 4 lists ModernBERT's last state without the norm behind the last block
    states = np.stack([*output.hidden_states[:-1], output.last_hidden_state])
    assert len(states) == WIDENED_LAYERS + 1
    pooled: dict[Pooling, np.ndarray] = {name: np.zeros_like(states[:, :, 0]) for name in ("mean", "cls", "last")}
    for text, length in enumerate(batch["attention_mask"].numpy().sum(axis=1)):
        if length:
            pooled["mean"][:, text] = states[:, text, :length].mean(axis=1)
            pooled["cls"][:, text] = states[:, text, 0]
            pooled["last"][:, text] = states[:, text, length - 1]
    return pooled


def test_exported_bundle_equals_pytorch(exported: Exported) -> None:
    assert ("has not been tried" in exported.result.stderr) == (exported.family in UNTRIED)
    stored = load_file(exported.bundle / "whitening.safetensors")
    want = exported.wanted(TRACED, "mean", stored["mean"], stored["W"])
    with Encoder(exported.bundle) as encoder:
        assert encoder.max_seq_length == MAX_LENGTH
        for batch_size in (1, 7, None):
            agreement = compare(encoder.encode(TEXTS, batch_size=batch_size), want)
            assert GATES["fp32"].passes(agreement), str(agreement)
        assert np.isfinite(encoder.encode("")).all()


@pytest.mark.slow
def test_bundle_gives_the_same_vectors_with_default_sessions(exported: Exported, tmp_path: Path) -> None:
    """Other programs let onnxruntime fuse all that it can."""
    check_default_sessions(exported, exported.bundle / MODEL_FILE, tmp_path)


@pytest.mark.slow
def test_layers_and_poolings_equal_pytorch(exported: Exported, tmp_path: Path) -> None:
    for layers, pooling in CASES:
        if (exported.family, pooling) == ("llama", "cls"):  # as its first token attends only to itself, <s> everywhere
            continue
        # A single token varies little in its last directions: there float32 PyTorch itself misses the gate.
        dim = WIDTH if pooling == "mean" else WIDTH // 2
        check(exported, layers, pooling, "fp32", dim, tmp_path)


@pytest.mark.slow
def test_precisions_pass_the_parity_gate(exported: Exported, tmp_path: Path) -> None:
    for precision in ("fp16", "int8"):
        for layers in ((0,), (1, WIDENED_LAYERS)):
            check(exported, layers, "mean", precision, WIDTH, tmp_path)
            check_default_sessions(exported, tmp_path / "model.onnx", tmp_path)


def check_default_sessions(exported: Exported, model: Path, folder: Path) -> None:
    """Compare this project's sessions with onnxruntime's default ones, on texts one at a time."""
    assert additions_before_norms(model) == []
    assert not {kind for kind in fused(model, folder) if "Skip" in kind}
    tokenizer = exported.tokenizer
    ids = [tokenizer.cut(row) for row in tokenizer.tokenize(TEXTS) if row]
    engine = open_engine(model, exported.model.tokenizer.pad_token_id)
    feeds, session = [engine.feed([row]) for row in ids], default_session(model)
    want = np.concatenate([engine.run_feed(feed) for feed in feeds])
    engine.close()
    assert worst(np.concatenate([session.run([OUTPUT], feed)[0] for feed in feeds]), want) <= 1e-6


def check(
    exported: Exported, layers: tuple[int, ...], pooling: Pooling, precision: Precision, dim: int, folder: Path
) -> None:
    """Whiten the traced graph as an export does, and compare it with the full model."""
    graph, path = exported.graph(layers, pooling), folder / "model.onnx"
    fitted = exported.fitted(graph, layers, pooling, dim, path)
    set_head(graph, (fitted.mean_, fitted.weight_), normalize=False)
    if precision == "fp16":
        halve_weights(graph)
    elif precision == "int8":
        pad, tokenizer = exported.model.tokenizer.pad_token_id, exported.tokenizer
        vocabulary = Vocabulary.of(tokenizer, exported.model.vocab_size, MAX_LENGTH)
        texts = calibration_texts(graph, tokenizer, CORPUS[:CALIBRATION_SENTENCES], vocabulary, pad)
        graph, scales = convert_to_int8(graph, texts, folder, SessionOptions(), Reporter())
        assert scales.far_min_cosine >= GATES["int8"].min_cosine, f"{layers} {pooling}: {scales}"
        assert scales.far_mean_cosine >= 0.995, f"{layers} {pooling}: {scales}"
        if exported.family != "mpnet":  # whose worst far text is .005 further off with feedback, but the mean nearer
            assert scales.far_min_cosine >= scales.token_min_cosine - 0.002, f"{layers} {pooling}: {scales}"
    lower_attention(graph, MAX_LENGTH)
    sum_residuals(graph)
    got = exported.vectors(graph, TEXTS, OUTPUT, path)
    operators = scan_graph(path).operators
    assert operators <= {("", name) for name in WRITTEN}
    if layers != (0,) and exported.family != "squeezebert":  # its products are Conv, which stay in float32
        assert (("", "MatMulInteger") in operators) == (precision == "int8")
    agreement = compare(got, exported.wanted(layers, pooling, fitted.mean_, fitted.weight_))
    assert GATES[precision].passes(agreement), f"{precision} {layers} {pooling}: {agreement}"


@pytest.mark.slow
def test_constant_first_token_is_refused(checkpoint: Callable[[str, int], Path], corpus_file: Path) -> None:
    """A decoder's first token attends only to itself, and is <s> in every text."""
    recipe = Recipe(str(checkpoint("llama", WIDENED)), layers=TRACED, pooling="cls", corpus=(str(corpus_file),))
    with pytest.raises(ParityError, match="the pooling takes a token that never changes, as cls of a decoder"):
        export_bundle(recipe, corpus_file.with_name("bundle"))
