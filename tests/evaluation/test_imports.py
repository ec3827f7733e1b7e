"""Test what the commands import: machines that only run bundles evaluate them too."""

from support.cli import python

HEAVY = ("torch", "transformers", "sklearn", "scipy", "matplotlib", "onnx", "onnx_ir", "onnxruntime", "mteb")


def test_commands_import_only_packages_of_the_runtime() -> None:
    program = (
        f"import sys, whiten_evaluation.commands.sweep\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert python(program, check=True).stdout.strip() == "[]"
