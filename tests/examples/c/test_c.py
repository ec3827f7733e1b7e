"""The program in C gives the vectors of Encoder, with onnxruntime's default options.

It needs a compiler, and onnxruntime's headers: Debian 13 has them as libonnxruntime-dev. The environment variable
ORT_INCLUDE names another folder of them. The library is that of onnxruntime's Python package.
"""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from support.corpus import sentences
from support.vectors import worst
from whiten import Encoder
from whiten_runtime.bundle.bundle import MODEL_FILE, TOKENIZER_FILE
from whiten_runtime.inference.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parents[3] / "examples" / "c" / "embed.c"
HEADERS = [os.environ.get("ORT_INCLUDE", "/usr/include/onnxruntime"), "/usr/include/onnxruntime/core/session"]
TEXTS = ["", "a", *sentences(40), "word " * 400, "word " * 3000, "Ünïcödé 日本 👩‍👧 русский"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the example as docs/edge.md says."""
    compiler = shutil.which("cc")
    headers = next((Path(name) for name in HEADERS if Path(name, "onnxruntime_c_api.h").is_file()), None)
    libraries = sorted(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    for what, found in (("a C compiler", compiler), ("onnxruntime_c_api.h", headers), ("libonnxruntime", libraries)):
        if not found:
            pytest.skip(f"needs {what}, which is not here")
    folder = tmp_path_factory.mktemp("c")
    (folder / "libonnxruntime.so").symlink_to(libraries[0])
    (folder / "libonnxruntime.so.1").symlink_to(libraries[0])
    options = ["-Wall", "-Wextra", "-Werror", "-O2", "-I", headers, "-L", folder, f"-Wl,-rpath,{folder}"]
    command = [compiler, *options, SOURCE, "-lonnxruntime", "-o", folder / "embed"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "embed"


def run(program: Path, *arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [program, *map(str, arguments)]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False)


def lines_of(bundle: Path, length: int) -> str:
    """Return the token ids of the texts, one text a line."""
    tokenizer = Tokenizer(bundle / TOKENIZER_FILE, length)
    return "".join(" ".join(map(str, tokenizer.cut(row))) + "\n" for row in tokenizer.tokenize(TEXTS))


@pytest.mark.parametrize("name", ["minilm_bundle", "minilm_int8_bundle", "long_bundle"])
def test_vectors_are_those_of_encoder(program: Path, name: str, request: pytest.FixtureRequest) -> None:
    bundle = request.getfixturevalue(name)
    with Encoder(bundle) as encoder:
        want = np.stack([encoder.encode(text) for text in TEXTS])
        done = run(program, bundle / MODEL_FILE, given=lines_of(bundle, encoder.max_seq_length))
    assert (done.returncode, done.stderr) == (0, "")
    got = np.array([line.split() for line in done.stdout.splitlines()], np.float32)
    assert worst(got, want) <= 1e-6


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("101 x 102\n", "x: not a token id"),
        ("101 1.5\n", "1.5: not a token id"),
        ("99999999999999999999\n", "not a token id"),
        ("\n", "a line without token ids"),
        ("101 999999\n", "idx=999999 must be within"),
        ("1 " * 8193 + "\n", "more than 8192 token ids"),
        ("1" * 140_000, "a line is longer than"),
    ],
)
def test_bad_input_is_one_line(program: Path, tiny_bundle: Path, given: str, message: str) -> None:
    done = run(program, tiny_bundle / MODEL_FILE, given=given)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_usage_and_a_missing_graph_are_one_line(program: Path, tmp_path: Path) -> None:
    for arguments, message in (((), "usage: embed"), ((tmp_path / "none.onnx",), "File doesn't exist")):
        done = run(program, *arguments)
        assert done.returncode == 1
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
