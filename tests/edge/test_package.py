"""Test the npm package, examples/node, and bundles in transformers.js."""

import gzip
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.corpus import sentences
from support.vectors import worst
from whiten import Encoder

pytestmark = pytest.mark.slow

CLIENT = Path(__file__).parents[2] / "clients" / "js"
SOURCES = sorted((CLIENT / "src").glob("*.js"))


def test_the_source_is_small_and_imports_what_the_package_names() -> None:
    package = json.loads((CLIENT / "package.json").read_text("utf-8"))
    allowed = {*package["dependencies"], *package["peerDependencies"]}
    texts = [path.read_text("utf-8") for path in SOURCES]
    assert len(gzip.compress("".join(texts).encode(), 9)) <= 11_000
    for text in texts:
        found = set(re.findall(r"(?:from|import)\s*\(?'([^'.][^']*)'", text))
        assert {name for name in found if not name.startswith("node:")} <= allowed
        assert "console." not in text


def test_the_entry_for_node_imports_nothing_of_browsers() -> None:
    """A bundler for Node follows every import, and fails at a package that is not installed."""
    read: dict[str, str] = {}
    wanted = ["node.js"]
    while wanted:
        name = wanted.pop()
        if name not in read:
            read[name] = (CLIENT / "src" / name).read_text("utf-8")
            wanted += re.findall(r"from '\./([^']+)'", read[name])
    assert "encoder.js" in read
    assert [name for name, text in read.items() if "import('onnxruntime-web')" in text] == []
    assert "import('onnxruntime-web')" in (CLIENT / "src" / "web.js").read_text("utf-8")


def test_a_tarball_installs_and_runs(golden: Path, workspace: Path, tmp_path: Path) -> None:
    def run(*command: str, cwd: Path = tmp_path) -> str:
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout

    tarball = run("npm", "pack", str(CLIENT), "--silent").strip()
    modules = tmp_path / "node_modules"
    modules.mkdir()
    for name in ("@huggingface", "onnxruntime-node"):
        (modules / name).symlink_to((workspace / "node_modules" / name).resolve())
    (modules / "whiten").mkdir()
    run("tar", "-xzf", tarball, "--strip-components=1", "-C", str(modules / "whiten"))
    program = f"""
        const {{ open }} = await import('whiten');
        if ('ORT_DISABLE_TELEMETRY' in process.env) throw new Error('set too early');
        const encoder = await open({json.dumps(str(golden / "bundle-v1"))});
        const row = await encoder.encode('A text.');
        process.stdout.write(`${{row.length}} ${{process.env.ORT_DISABLE_TELEMETRY}}`);
    """
    assert run("node", "--input-type=module", "-e", program) == "32 1"


def test_every_name_of_the_module_has_a_type(workspace: Path) -> None:
    types = set(
        re.findall(r"^export (?:class|function) (\w+)", (CLIENT / "src" / "index.d.ts").read_text("utf-8"), re.M)
    )
    for entry in ("whiten", "whiten/web"):
        program = f"process.stdout.write(JSON.stringify(Object.keys(await import('{entry}'))))"
        command = ["node", "--input-type=module", "-e", program]
        done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=True)
        assert set(json.loads(done.stdout)) == types


def test_wasm_gives_nearly_the_same_vectors(golden: Path, node: Callable[..., Any]) -> None:
    """Run onnxruntime-web in Node, with the bundle's files from memory."""
    for name, least in (("bundle-v1", 0.999999), ("bundle-v1-int8", 0.98)):
        texts = ["A heron waits for a fish.", "one", "a longer text about birds " * 5]
        calls = [["encode", texts], *(["encode", text] for text in texts), ["verify"]]
        together, *alone, proof = node(
            "drive.mjs", {"bundle": str(golden / name), "options": {}, "calls": calls, "web": True}
        )
        assert proof["minCosine"] >= least
        assert together == alone or name == "bundle-v1"


EXAMPLE = Path(__file__).parents[2] / "examples" / "node" / "search.mjs"


@pytest.fixture
def program(workspace: Path) -> str:
    return str(shutil.copy(EXAMPLE, workspace))


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["node", *map(str, arguments)], capture_output=True, text=True, check=False)


def test_lines_are_ordered_as_in_python(program: str, golden: Path, tmp_path: Path) -> None:
    lines, question = sentences(30), "Who plays?"
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n", "utf-8")
    done = run(program, golden / "bundle-v1", tmp_path / "lines.txt", question)
    assert done.returncode == 0, done.stderr
    with Encoder(golden / "bundle-v1") as encoder:
        scores = encoder.similarity(encoder.encode(question), encoder.encode(lines))[0]
    best = sorted(range(len(lines)), key=lambda index: -scores[index])[:5]
    assert done.stdout.splitlines() == [f"{scores[index]:.3f} {lines[index]}" for index in best]


def test_errors_are_one_line(program: str, tmp_path: Path) -> None:
    done = run(program, tmp_path, tmp_path / "lines.txt", "a")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "is not a whiten bundle" in done.stderr
    assert run(program).returncode == 2


TEXTS = ["A heron waits for a fish.", "Banks raise interest rates.", "", "naïve café", "Ünïcödé русский"]


@pytest.mark.parametrize("name", ["fp32", "cls", "lookup"])
def test_pipeline_opens_a_bundle(name: str, bundle: Callable[[str], Path], node: Callable[..., Any]) -> None:
    path = bundle(name)
    vectors = node("transformers.mjs", {"bundle": str(path), "texts": TEXTS})
    with Encoder(
        path
    ) as encoder:  # other fusions than in Python: differences are those of float32, made larger by the whitening
        assert worst(vectors, encoder.encode(TEXTS)) <= 1e-4


def test_texts_that_are_too_long_lose_their_last_special_token(
    bundle: Callable[[str], Path], node: Callable[..., Any]
) -> None:
    """Its truncation cuts the ids: docs/guides/javascript.md says so. Should it end, the text there changes."""
    path = bundle("fp32")
    vectors = node("transformers.mjs", {"bundle": str(path), "texts": ["long " * 400]})
    with Encoder(path) as encoder:
        assert worst(vectors, encoder.encode(["long " * 400])) > 1e-4
