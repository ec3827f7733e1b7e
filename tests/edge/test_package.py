"""Test the npm package: its tarball installs and runs, what it loads, its types, and onnxruntime-web in Node."""

import gzip
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

CLIENT = Path(__file__).parents[2] / "clients" / "js"
SOURCES = sorted((CLIENT / "src").glob("*.js"))


def test_the_source_is_small_and_imports_what_the_package_names() -> None:
    package = json.loads((CLIENT / "package.json").read_text("utf-8"))
    allowed = {*package["dependencies"], *package["peerDependencies"]}
    texts = [path.read_text("utf-8") for path in SOURCES]
    assert len(gzip.compress("".join(texts).encode(), 9)) <= 10_000
    for text in texts:
        found = set(re.findall(r"(?:from|import)\s*\(?'([^'.][^']*)'", text))
        assert {name for name in found if not name.startswith("node:")} <= allowed
        assert "console." not in text


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
        assert set(json.loads(done.stdout)) - {"webFiles"} == types


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
