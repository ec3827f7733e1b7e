"""Install and export what the measurements load: nothing here is timed.

`ready.json` in the cache says of which source everything was made; with another source it is made again.
"""

import hashlib
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.__main__ import Bench, engines_of, python, with_needed
from whiten_runtime.ort.processor import default_threads

ROOT = Path(__file__).parents[2]

ENGINES = (
    *("whiten-int8", "st", "openvino", "fastembed", "ctranslate2"),
    *("whiten-layer0", "model2vec"),
)
"""Beginnings of the names of engines in the tables, besides whiten-fp32."""

WORKLOADS = ("short", "mixed", "one")
PRECISIONS = ("fp32", "fp16", "int8")

PACKAGES = {
    "st": ("sentence-transformers", "optimum-onnx", "transformers", "onnxruntime"),
    "openvino": ("openvino",),
    "fastembed": ("fastembed", "onnxruntime"),
    "ctranslate2": ("ctranslate2",),
    "model2vec": ("model2vec",),
}
"""Packages whose versions are kept, by environment."""

_VERSIONS = """
import json, sys
from importlib.metadata import version
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""
_SUFFIXES = (".py", ".toml", ".gz")
_SOURCES = (
    *("models", "export", "runtime", "whitening", "benchmarks/peers", "benchmarks/all/prepare.py"),
    "constraints.txt",
)


def interpreter(cache: Path, engine: str) -> str:
    """Return the Python of an engine's environment: for whiten this one, for others one that is made if need be."""
    return sys.executable if engine.startswith("whiten") else python(cache, engine)


def command_of(name: str) -> str:
    """Return a command of this environment."""
    return str(Path(sys.executable).with_name(name))


def bench(model: str, cache: Path, sentences: list[str], share: float) -> Bench:
    """Return what runs the engines on one model, with all threads of this machine."""
    return Bench(model, cache, sentences, default_threads(), partial(interpreter, cache), share=share, chosen=WORKLOADS)


def engines(model: str) -> list[str]:
    """Return the engines of a model's table."""
    return engines_of(model, ENGINES)


def bundle(cache: Path, precision: str) -> Path:
    """Return where the bundle of all-MiniLM-L6-v2, layers 1 and 6, lies in a precision."""
    return cache / "bundles" / f"minilm-{precision}"


def prepare(models: list[str], cache: Path, sentences: list[str]) -> dict[str, Any]:
    """Make what is not ready, and return what is known of it: source, versions, distances from whiten's vectors.

    Raises:
        SystemExit: an engine cannot be prepared, or computes other vectors than whiten does.
    """
    cache.mkdir(parents=True, exist_ok=True)
    file, source = cache / "ready.json", digest(sentences)
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if found.get("source") != source:
        found = {"source": source, "differences": {}, "versions": {}}
        for precision in PRECISIONS:
            _export(bundle(cache, precision), precision)
        file.write_text(json.dumps(found, indent=1) + "\n")
    for model in models:
        if model in found["differences"]:
            continue
        runner = bench(model, cache, sentences, 1)
        for engine in with_needed(engines(model)):
            print(f"{model}: preparing {engine}", file=sys.stderr)
            runner.worker("prepare", engine)
        found["differences"][model] = runner.agree(engines(model))
        found["versions"] |= {name: _versions(cache, name) for name in PACKAGES if _used(name, model)}
        file.write_text(json.dumps(found, indent=1) + "\n")
    return found


def digest(sentences: list[str]) -> str:
    """Return the SHA-256 of the source that makes bundles and runs engines, and of the texts."""
    found = hashlib.sha256("\n".join(sentences).encode())
    for name in _SOURCES:
        place = ROOT / name
        files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.suffix in _SUFFIXES)
        for path in files:
            found.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _export(target: Path, precision: str) -> None:
    print(f"exporting {target.name}", file=sys.stderr)
    command = [command_of("whiten-export"), "minilm", "--layers", "1,6", "--whitening", "pca", "--precision", precision]
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*command, "--out", str(target), "--force"], check=True, stdout=subprocess.DEVNULL)


def _used(environment: str, model: str) -> bool:
    return any(engine.split("-")[0] == environment for engine in engines(model))


def _versions(cache: Path, environment: str) -> dict[str, str]:
    command = [interpreter(cache, environment), "-c", _VERSIONS, *PACKAGES[environment]]
    found: dict[str, str] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found
