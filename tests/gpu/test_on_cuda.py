"""On an NVIDIA GPU: `python -m pytest -m gpu`. Elsewhere these skip, and say why."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from support.corpus import sentences
from whiten_export.pipeline import export_bundle
from whiten_export.recipe import Recipe
from whiten_runtime import Encoder
from whiten_runtime.doctor import check_provider
from whiten_runtime.manifest import Precision
from whiten_runtime.parity import GATES, compare
from whiten_runtime.providers import CUDA_PROVIDER, import_onnxruntime

pytestmark = pytest.mark.gpu

TEXTS = ["", "a", *sentences(200), "word " * 60]


@cache
def problem() -> str | None:
    return check_provider(import_onnxruntime(), CUDA_PROVIDER).problem


@pytest.fixture(autouse=True)
def _needs_a_gpu() -> None:
    if why := problem():
        pytest.skip(why)


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "gpt2", "modernbert"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_vectors_are_pytorchs(
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
        assert gate.passes(gpu.verify())
        assert gate.passes(compare(gpu.encode(TEXTS), cpu.encode(TEXTS)))
        alone = np.stack([gpu.encode(text) for text in TEXTS])
        assert gate.passes(compare(alone, gpu.encode(TEXTS)))
        if target == "cuda":
            parity = gpu.manifest.parity
            assert parity is not None
            assert parity.provider == CUDA_PROVIDER


def test_its_memory_can_be_bounded(tiny_bundle: Path) -> None:
    providers = [(CUDA_PROVIDER, {"device_id": 0, "gpu_mem_limit": 1 << 30}), "CPUExecutionProvider"]
    with Encoder(tiny_bundle, providers=providers) as encoder:
        assert encoder.verify().min_cosine > 0.999999
