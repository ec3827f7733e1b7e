"""Measure how far each model of the catalogue, exported in each precision, is from PyTorch.

Importing this package gives huggingface_hub an empty cache, and lets `support` of the tests be imported. Both have to
happen before the modules of this package import them.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

CACHE = Path(tempfile.mkdtemp(prefix="whiten-families-"))
"""The hub's cache, which is removed when the process ends."""

atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
os.environ |= {"HF_HUB_CACHE": str(CACHE), "HF_HUB_OFFLINE": "1"}
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
