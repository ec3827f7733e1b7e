"""Node with the JavaScript client and what it needs, and small bundles of every kind."""

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.corpus import sentences
from support.once import kept, once

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CLIENT = ROOT / "clients" / "js"


def npm_folder() -> Path:
    """Return a folder outside the repository with the packages of npm/package.json; skip where there is no Node."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    wanted = HERE / "npm" / "package.json"

    def install(folder: Path) -> tuple[object, ...]:
        shutil.copy(wanted, folder)
        # The script after the installation of onnxruntime-node downloads CUDA.
        quiet = "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"
        return "npm", "install", *quiet, "--prefix", folder

    return kept("edge", wanted, install)


def make_workspace(packages: Path, folder: Path) -> None:
    """Copy the client beside links to the packages, and the programs of the tests."""
    modules = folder / "node_modules"
    (modules / "@huggingface").mkdir(parents=True)
    for name in ("onnxruntime-node", "onnxruntime-web", "@huggingface/tokenizers", "@huggingface/transformers"):
        (modules / name).symlink_to(packages / "node_modules" / name)
    shutil.copytree(CLIENT, modules / "whiten", ignore=shutil.ignore_patterns("node_modules"))
    for script in HERE.glob("*.mjs"):
        shutil.copy(script, folder)


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which Node finds the client."""
    return once(tmp_path_factory, "edge-workspace", partial(make_workspace, npm_folder()))


@pytest.fixture(scope="session")
def node(workspace: Path) -> Callable[..., Any]:
    """Returns what a program of the workspace prints, as JSON, for an input of JSON."""

    def run(script: str, given: Any, *flags: str) -> Any:
        command = ["node", *flags, script]
        text = json.dumps(given)
        done = subprocess.run(
            command, cwd=workspace, input=text, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def client(node: Callable[..., Any]) -> Callable[..., Any]:
    """Opens a bundle in Node, and returns the result of each call: a value, or {"error": ..., "message": ...}."""

    def run(bundle: Path | str, *calls: Sequence[Any], **options: Any) -> list[Any]:
        return node("drive.mjs", {"bundle": str(bundle), "options": options, "calls": [list(call) for call in calls]})

    return run


@pytest.fixture(scope="session")
def recipes(
    checkpoint: Callable[..., Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Any]:
    """Recipes of small bundles by name."""
    from support.published import save_published
    from support.vectors import write_word_vectors
    from whiten_export.recipe import Recipe

    corpus = (str(corpus_file),)
    words = once(tmp_path_factory, "edge.12d.txt", lambda path: write_word_vectors(path, sentences(400), 12))

    def published(name: str) -> str:
        return str(once(tmp_path_factory, f"edge-published/{name}", lambda path: save_published(name, path)))

    def bert(**choices: Any) -> Callable[[], Any]:
        return lambda: Recipe(
            str(checkpoint("bert")), **{"layers": (1, -1), "whitening": "pca", "dim": 16, "corpus": corpus} | choices
        )

    return {
        "fp32": bert(),
        "fp16": bert(precision="fp16"),
        "int8": bert(precision="int8"),
        "lookup": bert(layers=(0,), precision="int8"),
        "cls": lambda: Recipe(
            str(checkpoint("roberta")), pooling="cls", layers=(-1,), whitening="pca", dim=16, corpus=corpus
        ),
        "xlmr": lambda: Recipe(str(checkpoint("xlm-roberta")), layers=(-1,), whitening="pca", dim=16, corpus=corpus),
        "last": lambda: Recipe(
            str(checkpoint("gpt2")), pooling="last", layers=(-1,), whitening="pca", dim=16, corpus=corpus
        ),
        "sif": lambda: Recipe(str(words), pooling="sif", corpus=corpus),
        # Prompts, and two Dense.
        "embeddinggemma": lambda: Recipe(published("embeddinggemma")),
    }


@pytest.fixture(scope="session")
def bundle(recipes: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that exports a small bundle once a session."""
    from whiten_export.export import export_bundle

    return lambda name: once(
        tmp_path_factory, f"edge-bundles/{name}", lambda path: export_bundle(recipes[name](), path)
    )
