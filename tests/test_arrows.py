"""Imports run one way: docs/architecture.md draws the arrows that this test holds."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOMES = {"whiten_models": "models", "whiten": "runtime", "whiten_runtime": "runtime", "whiten_whitening": "whitening"}
HOMES |= {"whiten_export": "export", "whiten_evaluation": "evaluation", "whiten_serving": "serving"}
HOMES |= {"whiten_scale": "scale"}

PACKAGES = {
    "whiten_models": set(),
    "whiten_runtime": set(),
    "whiten_whitening": {"whiten_runtime"},
    "whiten_export": {"whiten_models", "whiten_runtime", "whiten_whitening"},
    "whiten_evaluation": {"whiten_runtime", "whiten_whitening", "whiten_export"},  # whiten_export: SWEEP alone
    "whiten_serving": {"whiten_runtime", "whiten_whitening"},
    "whiten_scale": {
        "whiten_runtime",
        "whiten_whitening",
        "whiten_serving",
        "whiten_export",
    },  # whiten_export: FITS alone
    "whiten": {"whiten_runtime", "whiten_whitening", "whiten_export", "whiten_serving"},
}
"""Packages that each package may import besides itself."""

ROOMS = {
    "whiten_runtime": (
        *("errors", "checks", "reporter", "bundle", "hub", "ort", "files", "signing", "inference"),
        *("opened", "vector_whitener", "text_bundle", "encoder", "tuner", "commands"),
    ),
    "whiten_whitening": (
        *("linalg", "moments", "isotropy", "similarity", "sample", "shrinkage", "maps", "settling", "stored"),
        *("alignment", "kinds", "layer_weights", "estimator", "selection", "drift", "codes"),
    ),
    "whiten_export": ("proof", "corpus", "graph", "sources", "writing", "pipeline", "commands"),
    "whiten_evaluation": ("embedding", "drawing", "tasks", "sweep", "commands"),
    "whiten_serving": (
        *("errors", "batching", "batcher", "mailbox", "http", "async_encoder", "settings", "server", "commands"),
    ),
    "whiten_scale": (
        *("places", "records", "inputs", "plan", "job", "vectors", "shard", "checking", "fitting", "tasks", "worker"),
        *("workers", "ray_cluster", "ray_serve", "commands"),
    ),
}
"""The rooms of a package from the ground up: each imports only those before it."""

SWEEP = ("whiten_evaluation.sweep", "whiten_evaluation.commands.sweep")
FITS = ("whiten_scale.fitting", "whiten_scale.commands.fit_many")
"""Modules of whiten_scale that write statistics, whose file whiten_export.corpus defines."""
TORCH = (
    *("whiten_export.sources.networks.", "whiten_runtime.inference.tensors"),
    "whiten.integrations.sentence_transformers",
)
"""Modules that import torch: networks, and those that give vectors as tensors to callers who ask for them."""
HUB = "whiten_runtime.hub."
HEAVY = {"torch", "transformers", "onnx", "onnx_ir", "onnxscript", "huggingface_hub", "optimum", "scipy", "matplotlib"}
LIGHT = ("whiten.", "whiten_models.", "whiten_runtime.", "whiten_scale.", "whiten_serving.", "whiten_whitening.")
LAZY = {"whiten/__init__.py", "whiten_runtime/__init__.py", "whiten_runtime/__init__.pyi"}
"""Files whose whole purpose is to give names of packages above them, when they are first used."""


def files() -> Iterator[tuple[Path, str]]:
    """Yield (file, its module) for every file of the packages, stubs included."""
    for package, home in HOMES.items():
        for path in sorted((ROOT / home / package).rglob("*.py*")):
            if path.suffix in (".py", ".pyi") and str(path.relative_to(ROOT / home)) not in LAZY:
                yield path, ".".join(path.relative_to(ROOT / home).with_suffix("").parts)


def imports() -> Iterator[tuple[str, str]]:
    """Yield (module, module that it imports), those of functions and of type checkers included."""
    for path, module in files():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}: relative imports would slip by this test"
                yield from ((module, f"{node.module}.{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((module, alias.name) for alias in node.names)
            elif isinstance(node, ast.Call) and "import_module" in ast.dump(node.func):
                raise AssertionError(f"{path}:{node.lineno}: import_module would slip by this test")


ARROWS = sorted(set(imports()))


@pytest.mark.parametrize("package", PACKAGES)
def test_packages(package: str) -> None:
    found = {(a, b.split(".")[0]) for a, b in ARROWS if a.split(".")[0] == package and b.split(".")[0] in PACKAGES}
    assert {b for _, b in found} - {package} <= PACKAGES[package]
    if package == "whiten_evaluation":
        assert all(a.startswith(SWEEP) for a, b in found if b == "whiten_export")
    if package == "whiten_scale":
        taken = {(a, b) for a, b in ARROWS if a.startswith("whiten_scale.") and b.startswith("whiten_export")}
        assert all(a in FITS and b.startswith("whiten_export.corpus.") for a, b in taken)


@pytest.mark.parametrize("package", ROOMS)
def test_rooms(package: str) -> None:
    order = (*ROOMS[package], "__init__", "__main__")
    for a, b in ARROWS:
        if a.startswith(f"{package}.") and b.startswith(f"{package}."):
            assert order.index(b.split(".")[1]) <= order.index(a.split(".")[1]), f"{a} imports {b}"


def test_outside_packages() -> None:
    for a, b in ARROWS:
        top = b.split(".")[0]
        assert top != "click" or ".commands" in a, f"{a} imports click"
        assert top != "torch" or a.startswith(TORCH), f"{a} imports torch"
        light = a.startswith(LIGHT) and not a.startswith(TORCH)
        light = light and not (top == "huggingface_hub" and a.startswith(HUB))
        assert top not in HEAVY or not light, f"{a} imports {b}"


def test_the_stub_of_the_runtime_has_its_names() -> None:
    import whiten_runtime

    stub = ast.parse((ROOT / "runtime/whiten_runtime/__init__.pyi").read_text("utf-8"))
    imported = {alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(whiten_runtime.__all__)
    assert all(getattr(whiten_runtime, name).__name__ == name for name in imported)
