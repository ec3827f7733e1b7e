"""Test what happens where a framework is missing, and that whiten itself needs none."""

import subprocess
import sys
from pathlib import Path

import pytest

import whiten.integrations

PACKAGES = {
    "bertopic": ("bertopic", "bertopic"),
    "chroma": ("chromadb", "chromadb"),
    "fastembed": ("fastembed", "fastembed>=0.6"),
    "haystack": ("haystack", "haystack-ai"),
    "keybert": ("keybert", "keybert"),
    "langchain": ("langchain_core", "langchain-core"),
    "llama_index": ("llama_index", "llama-index-core"),
    "mteb": ("mteb", "whiten[mteb]"),
    "sentence_transformers": ("sentence_transformers", "sentence-transformers>=5.4"),
    "sklearn": ("sklearn", "scikit-learn"),
    "spacy": ("spacy", "spacy"),
    "txtai": ("txtai", "txtai"),
}
"""Top-level module and distribution of each framework, by our module."""


def test_every_module_is_listed() -> None:
    found = {path.stem for path in Path(whiten.integrations.__path__[0]).glob("*.py")}
    assert found - {"__init__", "opening"} == set(PACKAGES)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_framework_is_named_with_its_package(name: str) -> None:
    module, package = PACKAGES[name]
    code = f"import sys; sys.modules[{module!r}] = None; import whiten.integrations.{name}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = result.stderr.splitlines()[-1]
    assert "MissingPackageError: this needs " in last
    assert f"install it with pip install '{package}'" in last


def test_the_package_imports_no_framework() -> None:
    code = "import sys, json, whiten.integrations; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {f'"{module}"' for module, _ in PACKAGES.values()} & set(result.stdout.split())
