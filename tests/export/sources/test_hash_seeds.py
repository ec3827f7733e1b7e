"""The order of Python's sets, which differs from process to process, is not in a bundle."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.checkpoints import save_checkpoint
from support.families import DECODERS, FAMILIES, Family

EXPORT = "from whiten_export.commands.export import export; export()"


@pytest.mark.slow
@pytest.mark.parametrize("family", [FAMILIES["modernbert"], DECODERS["gemma3_text"]], ids=["modernbert", "gemma3"])
def test_a_bundle_does_not_depend_on_the_hash_seed(family: Family, tmp_path: Path) -> None:
    save_checkpoint(family, tmp_path / "model")
    contents = []
    for seed in ("0", "2"):
        bundle = tmp_path / seed / "bundle"
        line = [sys.executable, "-c", EXPORT, str(tmp_path / "model"), "--whitening", "none", "--out", str(bundle)]
        subprocess.run(line, check=True, capture_output=True, env=os.environ | {"PYTHONHASHSEED": seed})
        files = sorted(path for path in bundle.rglob("*") if path.is_file())
        contents.append({path.relative_to(bundle).as_posix(): path.read_bytes() for path in files})
    assert contents[0] == contents[1]
