"""What tests of LoRA adapters share. Nothing here imports torch before a fixture needs it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def bert_adapter(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save an adapter of the small BERT."""
    from support.checkpoints import save_adapter

    folder = tmp_path_factory.mktemp("adapters") / "bert-adapter"
    return save_adapter(checkpoint("bert"), folder, "AutoModel", "FEATURE_EXTRACTION")


@pytest.fixture
def broken(bert_adapter: Path, tmp_path: Path) -> Path:
    """Copy the adapter, to be damaged."""
    return shutil.copytree(bert_adapter, tmp_path / "broken")
