"""Test the real checkpoint against other programs and published figures."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

from support.bundles import copy_bundle
from support.corpus import sentences
from whiten import Encoder
from whiten_export.export import export_bundle
from whiten_export.recipe import Recipe
from whiten_runtime.bundle.bundle import MODEL_FILE, open_bundle
from whiten_runtime.bundle.parity import GATES, compare, read_probes
from whiten_runtime.inference.loading import open_engine
from whiten_runtime.ort.session import SessionOptions

pytestmark = pytest.mark.slow
"""Quick tests export a smaller checkpoint with whitening (test_real_weights.py), and this one as the README does."""

TEXTS = [*sentences(200), "", "long " * 600, "Ünïcödé 日本 👩‍👧"]


@pytest.fixture(scope="module")
def raw_top(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """Export layer 6, mean, not whitened, normalised in the graph: the vectors that the checkpoint was trained for."""
    recipe = Recipe("minilm", layers=(6,), whitening=None, normalize=True)
    return Encoder(export_bundle(recipe, tmp_path_factory.mktemp("bundles") / "raw").path)


@pytest.mark.filterwarnings("ignore")
def test_vectors_equal_sentence_transformers(raw_top: Encoder, minilm_checkpoint: Path) -> None:
    theirs = SentenceTransformer(str(minilm_checkpoint), device="cpu").encode(TEXTS, batch_size=8)
    agreement = compare(raw_top.encode(TEXTS), theirs)
    assert agreement.max_difference < 2e-6, str(agreement)


@pytest.mark.filterwarnings("ignore")
def test_cls_vectors_equal_sentence_transformers(minilm_checkpoint: Path, tmp_path: Path) -> None:
    word = modules.Transformer(str(minilm_checkpoint), max_seq_length=64)
    theirs = SentenceTransformer(modules=[word, modules.Pooling(384, pooling_mode="cls")], device="cpu").encode(TEXTS)
    recipe = Recipe("minilm", layers=(-1,), pooling="cls", whitening=None, max_length=64)
    with Encoder(export_bundle(recipe, tmp_path / "cls").path) as encoder:
        agreement = compare(encoder.encode(TEXTS), theirs)
    assert agreement.max_difference < 2e-6, str(agreement)


def test_whitened_vectors_equal_pytorch(minilm_bundle: Path) -> None:
    with Encoder(minilm_bundle) as encoder:
        agreement = encoder.verify()
    assert GATES["fp32"].passes(agreement)
    assert agreement.max_difference < 5e-6, str(agreement)


def test_vector_does_not_depend_on_its_batch(minilm_bundle: Path) -> None:
    generator = np.random.default_rng(0)
    with Encoder(minilm_bundle) as encoder:
        alone = np.stack([encoder.encode(text) for text in TEXTS])
        for _ in range(3):
            order = generator.permutation(len(TEXTS))
            mixed = encoder.encode([TEXTS[index] for index in order], batch_size=int(generator.integers(2, 20)))
            difference = np.abs(mixed - alone[order]).max(axis=1) / np.linalg.norm(alone[order], axis=1)
            assert difference.max() < 2e-6


@pytest.mark.parametrize("normalize", [False, True])
def test_codes_of_8_bits_lose_little(minilm_bundle: Path, normalize: bool) -> None:
    """The ranges come from the moments of the corpus, which these texts are unlike."""
    texts = sentences(400)
    with Encoder(minilm_bundle) as encoder:
        exact = encoder.encode(texts, normalize_embeddings=normalize)
        codes = encoder.encode(texts, normalize_embeddings=normalize, precision="uint8")
        lower, upper = encoder.ranges(normalize_embeddings=normalize)
        restored = lower + (upper - lower) / 255 * (codes + np.float32(0.5))
        lost = np.square(restored - exact).sum() / np.square(exact - exact.mean(axis=0)).sum()
        moved = np.abs(encoder.similarity(restored, restored) - encoder.similarity(exact, exact))
    assert lost < 3e-4
    assert moved.mean() < 1.2e-3


def test_published_figure_on_sts_benchmark(raw_top: Encoder, public_data: Path) -> None:
    """82.03 is Spearman's correlation on the test set, as published with the checkpoint."""
    lines = (public_data / "sts" / "sts-b-test.csv").read_text("utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    gold = [float(row[4]) for row in rows]
    first, second = (raw_top.encode([row[column] for row in rows]) for column in (5, 6))
    assert 100 * spearmanr((first * second).sum(axis=1), gold).statistic == pytest.approx(82.03, abs=0.02)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-12), (torch.float64, 1e-6)])
def test_probes_are_vectors_of_pytorch(
    minilm_bundle: Path, minilm_checkpoint: Path, dtype: torch.dtype, bound: float
) -> None:
    """The stored vectors are those of the network as it is loaded, in one thread, and near those in float64."""
    probes = read_probes(open_bundle(minilm_bundle))
    text = probes.texts[7]
    batch = transformers.AutoTokenizer.from_pretrained(minilm_checkpoint)(text, return_tensors="pt")
    network = transformers.AutoModel.from_pretrained(minilm_checkpoint, dtype=dtype).eval()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            states = network(**batch, output_hidden_states=True).hidden_states
    finally:
        torch.set_num_threads(threads)
    want = (states[1].double().mean(dim=1) + states[6].double().mean(dim=1)).numpy()[0] / 2
    np.testing.assert_allclose(probes.unwhitened[7], want, rtol=0, atol=bound)


def test_replaced_weights_are_not_mixed_with_those_in_use(tmp_path: Path, minilm_bundle: Path) -> None:
    copy = copy_bundle(minilm_bundle, tmp_path)
    made = open_engine(copy / MODEL_FILE, 0, SessionOptions(threads=2))
    weights = (copy / MODEL_FILE).with_name("model.onnx_data")
    changed = bytearray(weights.read_bytes())
    changed[: len(changed) // 2] = bytes(len(changed) // 2)
    weights.with_suffix(".new").write_bytes(changed)
    weights.with_suffix(".new").replace(weights)
    with Encoder(minilm_bundle) as original:
        ids = original._tokenizer.tokenize(["a short text"] * 40)
        np.testing.assert_allclose(made.run(ids), original.encode(["a short text"] * 40), rtol=1e-3, atol=1e-3)
