"""Try `.ci/gpu` on a machine without a GPU: what it installs from, what it runs, and what it refuses."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "gpu"


def run(*arguments: str, python: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{python.parent}{os.pathsep}" if python else ""
    environment = {**os.environ, **variables, "PATH": path + os.environ["PATH"]}
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, timeout=1500
    )


def write_wheel(folder: Path, name: str, code: str) -> bytes:
    """Return the bytes of a wheel with one module."""
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", code)
        wheel.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        wheel.writestr(f"{name}-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.dist-info/RECORD", "")
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.mark.parametrize("wheels", ["missing", "empty"])
def test_folder_without_wheels_is_refused_before_anything_is_installed(tmp_path: Path, wheels: str) -> None:
    (tmp_path / "empty").mkdir()
    result = run("--wheels", str(tmp_path / wheels), "--here", "--trial")
    assert result.returncode == 2
    assert result.stderr.startswith("error: --wheels ")
    assert len(result.stderr.splitlines()) == 1


def test_trial_installs_from_parts_without_an_index_and_runs_all_steps(tmp_path: Path) -> None:
    """The environment sees this one's packages; the index is an address at which nothing answers."""
    builder = venv.EnvBuilder(with_pip=True)
    builder.create(tmp_path / "environment")
    python = tmp_path / "environment" / "bin" / "python3"
    site = next((tmp_path / "environment" / "lib").glob("python*/site-packages"))
    (site / "packages.pth").write_text("\n".join(entry for entry in sys.path if "site-packages" in entry) + "\n")
    here = subprocess.run(
        [sys.executable, "-c", "import whiten_runtime; print(whiten_runtime.__file__)"], capture_output=True, text=True
    ).stdout.strip()
    folders = [ROOT / name for name in ("runtime", "export", "models", "whitening", "evaluation", "serving", "scale")]
    assert Path(here).is_relative_to(ROOT)
    (site / "whiten.pth").write_text("\n".join(map(str, folders)) + "\n")
    parts = tmp_path / "parts"
    parts.mkdir()
    whole = write_wheel(tmp_path, "carried", "VALUE = 7\n")
    for index, start in enumerate(range(0, len(whole), 200)):
        (parts / f"carried-1-py3-none-any.whl.part{index:02}").write_bytes(whole[start : start + 200])
    nowhere = "http://127.0.0.1:9/simple"
    result = run(
        "--wheels", str(parts), "--here", "--trial", python=python, PIP_INDEX_URL=nowhere, CUDA_VISIBLE_DEVICES=""
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    imported = subprocess.run(
        [str(python), "-c", "import carried; print(carried.VALUE)"], capture_output=True, text=True
    )
    assert imported.stdout.strip() == "7"
    assert "CPUExecutionProvider: works" in result.stdout
    assert "skipped" in result.stdout
    assert "# On a GPU: no GPU: a trial of the script" in result.stdout
