"""The small image: what this machine can check of it without a container.

That the image builds and starts is checked by `.ci/images`. Its size is the sum of what can be measured here (the
packages that the script installs, the bundle) and of what Debian states for the packages of the base image.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.corpus import sentences
from whiten import Encoder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
EDGE = ROOT / "examples" / "edge"
IMAGE_BYTES = 200e6
BASE_BYTES = 57e6
"""Sum of Installed-Size of the packages of Debian 12 in distroless/python3: 55,310 KiB; see docs/edge.md."""

TEXTS = ["", "A sentence.", *sentences(20), "word " * 400, "Ünïcödé 日本"]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the image's own script installs into."""
    folder = tmp_path_factory.mktemp("packages")
    command = ["sh", str(EDGE / "install.sh"), str(folder), str(ROOT), sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and not os.environ.get("CI"):
        pytest.skip(f"pip could not install the packages: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    return folder


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine" / "tests").mkdir(parents=True)
    (tmp_path / "mine" / "tests" / "test_mine.py").touch()
    command = ["sh", str(EDGE / "install.sh"), str(tmp_path / "mine"), str(ROOT), "false"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "is not empty" in done.stderr) == (2, True), done
    assert (tmp_path / "mine" / "tests" / "test_mine.py").is_file()


def embed(packages: Path, *arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run the image's program with its packages alone: -S leaves out those of this environment."""
    return subprocess.run(
        [sys.executable, "-S", str(EDGE / "embed.py"), *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(packages), "LC_ALL": "C.UTF-8", "HOME": "/nowhere"},
    )


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_packages_give_the_vectors_of_encoder(packages: Path, tiny_bundle: Path) -> None:
    done = embed(packages, tiny_bundle, given="\n".join(TEXTS) + "\n")
    assert (done.returncode, done.stderr) == (0, "")
    got = np.array([json.loads(line) for line in done.stdout.splitlines()], np.float32)
    with Encoder(tiny_bundle) as encoder:
        np.testing.assert_array_equal(got, np.stack([encoder.encode(text) for text in TEXTS]))


def test_the_packages_verify_a_bundle(packages: Path, tiny_bundle: Path) -> None:
    code = "import sys; from whiten import Encoder; print(Encoder(sys.argv[1]).verify().vectors)"
    command = [sys.executable, "-S", "-c", code, str(tiny_bundle)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(packages)})
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 10


@pytest.mark.parametrize("arguments", [(), ("/no/bundle",), ("a", "b")])
def test_bad_arguments_are_one_line(packages: Path, arguments: tuple[str, ...]) -> None:
    done = embed(packages, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1


def test_the_image_is_small(packages: Path, minilm_int8_bundle: Path) -> None:
    installed, bundle = size_of(packages), size_of(minilm_int8_bundle)
    assert installed <= 105e6
    assert BASE_BYTES + installed + bundle <= IMAGE_BYTES


def test_the_dockerfile(dockerfile: Callable[[Path], Any]) -> None:
    steps, _, kept = dockerfile(EDGE / "Dockerfile")
    assert {"runtime", "whiten", "examples/edge"} <= kept
    assert json.loads(dict(steps)["ENTRYPOINT"]) == ["/usr/bin/python3", "/embed.py", "/bundle"]
    assert [value for step, value in steps if step == "RUN"] == ["sh examples/edge/install.sh /packages /source"]
    bases = [value for step, value in steps if step == "FROM"]
    assert bases == ["python:3.11-slim-bookworm AS build", "gcr.io/distroless/python3-debian12:nonroot"]
