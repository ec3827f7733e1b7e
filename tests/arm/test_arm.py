"""The shortest part of `.ci/arm`: golden bundles on one ARM64 processor that qemu emulates."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from arm import long
from arm.emulation import PROCESSORS, ROOT, build, missing, run
from support.once import CACHE
from whiten import Encoder
from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.parity import read_probes

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

GOLDEN = ("bundle-v1", "bundle-v1-int8", "bundle-v1-vectors")


@pytest.fixture(scope="module")
def machine() -> Path:
    build(CACHE / "arm64")
    return CACHE / "arm64"


def test_golden_and_new_bundles_on_a_raspberry_pi(machine: Path, fresh_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(fresh_bundle, tmp_path / "fresh")
    for name in GOLDEN:
        shutil.copytree(ROOT / "tests" / "data" / name, tmp_path / name)
    (tmp_path / "texts").write_text("")
    guest = Path(__file__).with_name("guest.py")
    bundles = [f"/work/{name}" for name in ("fresh", *GOLDEN)]
    results = run(machine, PROCESSORS["cortex-a72"], guest, ["/work", "/work/texts", *bundles], tmp_path)
    steps = {result["step"]: result for result in results}
    assert [result["verified"] for result in results if result["step"] == "probes"] == [True, True, True]
    assert steps["threads"]["equal"]
    assert steps["embed"]["difference"] == 0
    assert steps["refit"]["dimension"] == 8
    assert steps["codes"]["recall"] > 0.9
    for name in ("fresh", "bundle-v1"):
        path = tmp_path / name
        with Encoder(path, threads=1) as encoder:
            here = encoder.encode(read_probes(open_bundle(path)).texts, prompt="")
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), here, rtol=0, atol=1e-5 * np.abs(here).max())


def test_texts_of_300_and_1500_tokens_on_a_raspberry_pi(machine: Path, long_bundle: Path, tmp_path: Path) -> None:
    """Alone, and beside a short text; attention takes 3 and 12 blocks. `.ci/arm` embeds 3,000 tokens."""
    shutil.copytree(long_bundle, tmp_path / "long")
    run(machine, PROCESSORS["cortex-a72"], Path(long.__file__), ["/work", "300,1500", "/work/long"], tmp_path)
    here = long.long_vectors(long_bundle, (300, 1500))
    np.testing.assert_allclose(np.load(tmp_path / "long.npy"), here, rtol=0, atol=1e-5 * np.abs(here).max())
