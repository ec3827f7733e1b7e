"""Test the public names of `import whiten`."""

import ast
import copy
import json
import os
import pickle
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

import whiten
from support.cli import python

PUBLIC = """
Agreement AlignmentRecord AsyncEncoder Batcher BatcherCounters BatcherStats BundleError CandidateRecord ChoiceRecord
ClosedError Coder Codes Corpus CorpusRecord DataError DeadlineExceededError Drift DriftMonitor EncodeArguments Encoder
Export FileRecord IntegrityError IsotropyRecord Manifest MissingPackageError Nearest NoVectorError OverloadedError
ParityError ParityRecord ProviderError QuantizationRecord QueuedArguments Recipe Reporter
Source TextError TextMemory TooLongError TooManyTokensError UnsafeModelError UsageError VectorWhitener WhitenError
Whitening WhiteningRecord WhiteningSpec __version__ export_bundle export_vectors fit_bundle refit_bundle
"""

HEAVY = (*("torch", "transformers", "onnx", "onnx_ir", "onnxruntime", "huggingface_hub", "sklearn", "tokenizers"),)


BUILDERS = {"export_bundle", "export_vectors", "fit_bundle", "refit_bundle"}


def test_public_names_are_listed() -> None:
    pytest.importorskip("onnx_ir")
    assert whiten.__all__ == sorted(PUBLIC.split())
    assert dir(whiten) == whiten.__all__


@pytest.mark.parametrize("name", [name for name in PUBLIC.split() if name not in ("fit_bundle", "refit_bundle")])
def test_each_name_can_be_imported(name: str) -> None:
    if name.startswith("export_"):
        pytest.importorskip("onnx_ir")
    value = getattr(whiten, name)
    assert value == version("whiten") if name == "__version__" else value.__name__ == name


def test_type_checkers_are_told_the_same_names() -> None:
    stub = ast.parse((Path(whiten.__file__).parent / "__init__.pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    told = [alias.name for node in imports for alias in node.names if alias.asname == alias.name]
    assert sorted([*told, "__version__"]) == sorted(PUBLIC.split())


def test_it_is_imported_without_its_stub(tmp_path: Path) -> None:
    """Tools that freeze programs, or make images small, leave files of types out."""
    (tmp_path / "whiten").mkdir()
    shutil.copy(whiten.__file__, tmp_path / "whiten")
    code = f"import whiten; assert whiten.__file__.startswith({str(tmp_path)!r}); whiten.Encoder; print(*dir(whiten))"
    done = python(code, env=os.environ | {"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    assert (done.stderr, done.stdout.split()) == ("", whiten.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'encode'"):
        whiten.encode  # noqa: B018


@pytest.mark.parametrize(
    ("imports", "allowed"),
    [
        ("import whiten; dir(whiten)", set()),
        (
            "from whiten import Encoder, VectorWhitener, Whitening, DriftMonitor, Recipe, Coder, Batcher, AsyncEncoder",
            {"tokenizers"},
        ),
    ],
)
def test_importing_loads_nothing_heavy(imports: str, allowed: set[str]) -> None:
    code = f"import sys, json; {imports}; print(json.dumps(sorted(sys.modules)))"
    result = python(code, check=True)
    assert (set(HEAVY) - allowed).isdisjoint(json.loads(result.stdout))


def test_embedding_imports_nothing_but_what_a_small_machine_installs(golden: Path) -> None:
    """docs/edge.md: no packages but onnxruntime, numpy, tokenizers, msgspec and safetensors; and no network."""
    code = """
import json, sys
absent = ("click", "tqdm", "huggingface_hub", "threadpoolctl", "hf_xet", "yaml", "packaging", "flatbuffers", "google")
absent += ("torch", "transformers", "onnx", "scipy", "sklearn", "pandas", "pyarrow", "whiten_export", "whiten_models")
def refuse(*args, **kwargs): raise AssertionError("the runtime used the network")
import socket
socket.socket.connect = socket.getaddrinfo = refuse
from whiten import Encoder
with Encoder(sys.argv[1]) as encoder:
    encoder.encode(["a text"] * 40)
    encoder.encode("a text", normalize_embeddings=True)
    encoder.verify()
print(json.dumps([name for name in absent if name in sys.modules]))
"""
    result = python(code, golden / "bundle-v1")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == []


def test_missing_extra_is_named() -> None:
    code = "import sys; sys.modules['onnx_ir'] = None; import whiten; whiten.export_bundle"
    last = python(code).stderr.splitlines()[-1]
    assert last.startswith("whiten_runtime.errors.MissingPackageError: ")
    assert "onnx_ir" in last
    assert ".[export]" in last


def test_star_gives_what_is_installed() -> None:
    code = """
import sys
sys.modules["onnx_ir"] = None
from whiten import *
print(*sorted(name for name in dir() if not name.startswith("_") and name != "sys"))
"""
    result = python(code)
    assert result.returncode == 0, result.stderr
    assert set(result.stdout.split()) == set(PUBLIC.split()) - BUILDERS - {"__version__"}


def test_every_error_survives_pickling_and_copying() -> None:
    """A process pool brings them to the parent; one that cannot be read there ends the pool."""
    errors = [one for one in (getattr(whiten, name) for name in whiten.__all__) if is_error(one)]
    assert len(errors) > 12
    for kind in errors:
        more = {"OverloadedError": ("full", 1.5), "TooManyTokensError": ("many", 7), "NoVectorError": ({3: "lost"},)}
        more["TooLongError"] = (9, 8, "tokens", "cut it", 1)
        error = kind(*more.get(kind.__name__, ("a message",)))
        if isinstance(error, whiten.NoVectorError):
            error.text = "the text"
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(again) is kind
            assert str(again) == str(error)
            assert vars(again) == vars(error)


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)
