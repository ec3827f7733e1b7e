"""Test on an NVIDIA GPU: `python -m pytest -m gpu`. Without one, these tests are skipped with a reason."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from support.corpus import sentences
from whiten import Encoder
from whiten_export.export import export_bundle
from whiten_export.recipe import Recipe
from whiten_runtime.bundle.manifest import Precision
from whiten_runtime.bundle.parity import GATES, compare
from whiten_runtime.ort.doctor import check_provider
from whiten_runtime.ort.session import CUDA_PROVIDER, import_onnxruntime

pytestmark = [pytest.mark.slow, pytest.mark.gpu]

OF_SHAPES = {"Shape", "Gather", "Concat", "Range", "Slice", "Squeeze", "Unsqueeze", "Cast", "Add", "Sub", "Mul", "Max"}
"""Operators that onnxruntime may put on the CPU, for sizes and positions: they do not depend on the texts' tokens."""

TEXTS = ["", "a", *sentences(200), "word " * 60]


@cache
def problem() -> str | None:
    return check_provider(import_onnxruntime(), CUDA_PROVIDER).problem


@pytest.fixture(autouse=True)
def _needs_a_gpu() -> None:
    if why := problem():
        pytest.skip(why)


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "gpt2", "modernbert", "distilbert", "albert"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_vectors_on_cuda_pass_the_parity_gate(
    checkpoint: Callable[..., Path], tmp_path: Path, family: str, precision: Precision, target: str
) -> None:
    recipe = Recipe(
        str(checkpoint(family, 4)),
        precision=precision,
        target=target,
        max_sentences=600,  # type: ignore[arg-type]
    )
    export_bundle(recipe, tmp_path / "bundle")
    gate = GATES[precision]
    with Encoder(tmp_path / "bundle", device="cuda") as gpu, Encoder(tmp_path / "bundle") as cpu:
        assert gpu.providers[0] == CUDA_PROVIDER
        assert gpu.placement.share(CUDA_PROVIDER) > 0.5
        on_cpu = {name for other, names in gpu.placement.operators.items() if other != CUDA_PROVIDER for name in names}
        assert on_cpu <= OF_SHAPES, on_cpu
        assert gate.passes(gpu.verify())
        assert gate.passes(compare(gpu.encode(TEXTS), cpu.encode(TEXTS)))
        alone = np.stack([gpu.encode(text) for text in TEXTS])
        assert gate.passes(compare(alone, gpu.encode(TEXTS)))
        # Runs of a few texts, two side by side.
        assert gate.passes(compare(gpu.encode(TEXTS * 4, batch_size=5), np.tile(cpu.encode(TEXTS), (4, 1))))
        if target == "cuda":
            parity = gpu.manifest.parity
            assert parity is not None
            assert parity.provider == CUDA_PROVIDER


def test_gpu_memory_limit_is_accepted(tiny_bundle: Path) -> None:
    providers = [(CUDA_PROVIDER, {"device_id": 0, "gpu_mem_limit": 1 << 30}), "CPUExecutionProvider"]
    with Encoder(tiny_bundle, providers=providers) as encoder:
        assert encoder.verify().min_cosine > 0.999999


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_single_text_requests_replayed_by_cuda_graphs_pass_the_gate(
    checkpoint: Callable[..., Path], tmp_path: Path, precision: Precision
) -> None:
    recipe = Recipe(str(checkpoint("bert", 4)), precision=precision, target="cuda", max_sentences=600)
    export_bundle(recipe, tmp_path / "bundle")
    gate = GATES[precision]
    with Encoder(tmp_path / "bundle", device="cuda", cuda_graphs=True) as graphs, Encoder(tmp_path / "bundle") as cpu:
        assert gate.passes(graphs.verify())
        want = cpu.encode(TEXTS)
        with ThreadPoolExecutor(4) as threads:
            for _ in range(3):
                assert gate.passes(compare(np.stack(list(threads.map(graphs.encode, TEXTS))), want))
        assert gate.passes(compare(graphs.encode(TEXTS), want))


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_batches_that_are_too_large_for_the_memory_run_in_parts(
    checkpoint: Callable[..., Path], tmp_path: Path, target: str
) -> None:
    recipe = Recipe(
        str(checkpoint("bert", 4)),
        target=target,  # type: ignore[arg-type]
        max_sentences=600,
    )
    export_bundle(recipe, tmp_path / "bundle")
    texts = ["word " * 60] * 3000
    small = [(CUDA_PROVIDER, {"gpu_mem_limit": 48 << 20})]
    with Encoder(tmp_path / "bundle", small) as gpu, Encoder(tmp_path / "bundle") as cpu:
        assert GATES["fp32"].passes(compare(gpu.encode(texts)[::100], cpu.encode(texts[::100])))


def test_strict_normalisations_are_not_less_accurate(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    recipe = Recipe(str(checkpoint("bert", 4)), precision="fp16", target="cuda", max_sentences=600)
    export_bundle(recipe, tmp_path / "bundle")
    loose = [(CUDA_PROVIDER, {"enable_skip_layer_norm_strict_mode": 0})]
    with Encoder(tmp_path / "bundle", device="cuda") as exact, Encoder(tmp_path / "bundle", loose) as other:
        assert exact.verify().min_cosine >= other.verify().min_cosine - 1e-6
