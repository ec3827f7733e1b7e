"""Start Python without PyTorch, as in the environment of the extra `quickstart`."""

from pathlib import Path

SITE = """
import importlib.metadata, sys

def version(name, usual=importlib.metadata.version):
    if name in ("torch", "transformers", "sentence-transformers", "onnxscript"):
        raise importlib.metadata.PackageNotFoundError(name)
    return usual(name)

importlib.metadata.version = version
for name in ("torch", "transformers", "sentence_transformers", "onnxscript", "pyarrow", "pandas", "scipy", "sklearn"):
    sys.modules[name] = None
"""


def hide_torch(folder: Path) -> Path:
    """Write a folder for PYTHONPATH that hides the packages which the extra `quickstart` does not bring."""
    hidden = folder / "without-torch"
    hidden.mkdir(exist_ok=True)
    (hidden / "sitecustomize.py").write_text(SITE, "utf-8")
    return hidden
