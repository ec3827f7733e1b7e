"""Test what happens where a framework is missing, and that whiten itself needs none."""

import json
from pathlib import Path

import whiten.integrations
from support.cli import python
from whiten_runtime.errors import from_clone

PACKAGES = {
    "bertopic": ("bertopic", "bertopic"),
    "chroma": ("chromadb", "chromadb"),
    "fastembed": ("fastembed", "fastembed>=0.6"),
    "haystack": ("haystack", "haystack-ai"),
    "keybert": ("keybert", "keybert"),
    "langchain": ("langchain_core", "langchain-core"),
    "llama_index": ("llama_index", "llama-index-core"),
    "mteb": ("mteb", "whiten[mteb]"),
    "sentence_transformers": ("sentence_transformers", "sentence-transformers>=5.5"),
    "sklearn": ("sklearn", "scikit-learn"),
    "spacy": ("spacy", "spacy"),
    "txtai": ("txtai", "txtai"),
}
"""Top-level module and distribution of each framework, by our module."""


def test_every_module_is_listed() -> None:
    found = {path.stem for path in Path(whiten.integrations.__path__[0]).glob("*.py")}
    assert found - {"__init__", "bundle_source", "saved_copy", "ray"} == set(PACKAGES)  # a stage for Ray imports no Ray


def test_a_missing_framework_is_named_with_its_package() -> None:
    code = f"""
import importlib, json, sys
sys.modules |= dict.fromkeys({[module for module, _ in PACKAGES.values()]})
found = {{}}
for name in {list(PACKAGES)}:
    try:
        importlib.import_module("whiten.integrations." + name)
    except Exception as error:
        found[name] = type(error).__name__ + ": " + str(error)
print(json.dumps(found))
"""
    result = python(code, check=True)
    found = json.loads(result.stdout)
    for name, (_, package) in PACKAGES.items():
        assert found[name].startswith("MissingPackageError: this needs "), name
        install = from_clone("mteb") if name == "mteb" else f"with pip install '{package}'"
        assert f"install it {install}" in found[name]


def test_the_package_imports_no_framework() -> None:
    code = "import sys, json, whiten.integrations; print(json.dumps(sorted(sys.modules)))"
    result = python(code, check=True)
    assert not {f'"{module}"' for module, _ in PACKAGES.values()} & set(result.stdout.split())
