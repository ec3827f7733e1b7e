"""Test what the commands import: machines that only run bundles evaluate them too."""

import subprocess
import sys

HEAVY = ("torch", "transformers", "sklearn", "scipy", "matplotlib", "onnx", "onnx_ir", "onnxruntime", "mteb")


def test_commands_import_only_packages_of_the_runtime() -> None:
    program = (
        f"import sys, whiten_evaluation.commands.sweep\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
