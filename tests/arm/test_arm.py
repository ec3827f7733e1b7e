"""The shortest part of `.ci/arm`: golden bundles on one ARM64 processor that qemu emulates."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from arm.emulation import PROCESSORS, ROOT, build, missing, run
from support.once import CACHE
from whiten import Encoder
from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.parity import read_probes

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

BUNDLES = ("bundle-v1", "bundle-v1-int8", "bundle-v1-vectors")


def test_golden_bundles_on_a_raspberry_pi(tmp_path: Path) -> None:
    machine = CACHE / "arm64"
    build(machine)
    for name in BUNDLES:
        shutil.copytree(ROOT / "tests" / "data" / name, tmp_path / name)
    (tmp_path / "texts").write_text("")
    guest = Path(__file__).with_name("guest.py")
    bundles = [f"/work/{name}" for name in BUNDLES]
    results = run(machine, PROCESSORS["cortex-a72"], guest, ["/work", "/work/texts", *bundles], tmp_path)
    steps = {result["step"]: result for result in results}
    assert [result["verified"] for result in results if result["step"] == "probes"] == [True, True]
    assert steps["threads"]["equal"]
    assert steps["embed"]["difference"] == 0
    assert steps["refit"]["dimension"] == 8
    assert steps["codes"]["recall"] > 0.9
    path = tmp_path / "bundle-v1"
    with Encoder(path, threads=1) as encoder:
        here = encoder.encode(read_probes(open_bundle(path)).texts, prompt="")
    np.testing.assert_allclose(np.load(tmp_path / "bundle-v1.npy"), here, rtol=0, atol=1e-5 * np.abs(here).max())
