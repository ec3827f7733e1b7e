"""Test the npm package: its size, what it loads, and its types."""

import gzip
import json
import re
import subprocess
from pathlib import Path

import pytest

from support.edge import Call

pytestmark = pytest.mark.slow

CLIENT = Path(__file__).parents[2] / "clients" / "js"
SOURCES = sorted((CLIENT / "src").glob("*.js"))
COMMENT = re.compile(r"^\s*(//.*|/?\*.*)$|^\s+| // .*$", re.MULTILINE)


def test_a_page_loads_at_most_15_kb() -> None:
    """Count what a minifier leaves at least: without comments and indentation, in one file."""
    page = "".join(path.read_text("utf-8") for path in SOURCES if path.name != "node.js")
    assert len(gzip.compress(COMMENT.sub("", page).encode(), 9)) <= 15_000


def test_files_are_small_and_import_what_the_package_names() -> None:
    package = json.loads((CLIENT / "package.json").read_text("utf-8"))
    allowed = {*package["dependencies"], *package["peerDependencies"]}
    for path in SOURCES:
        text = path.read_text("utf-8")
        assert len(text.splitlines()) <= 300, path
        found = set(re.findall(r"(?:from|import)\s*\(?'([^'.][^']*)'", text))
        assert found <= allowed, path
        assert "console." not in text


def test_every_name_of_the_module_has_a_type(workspace: Path) -> None:
    types = set(
        re.findall(r"^export (?:class|function) (\w+)", (CLIENT / "src" / "index.d.ts").read_text("utf-8"), re.M)
    )
    for entry in ("whiten", "whiten/web"):
        program = f"process.stdout.write(JSON.stringify(Object.keys(await import('{entry}'))))"
        command = ["node", "--input-type=module", "-e", program]
        done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=True)
        assert set(json.loads(done.stdout)) == types


def test_telemetry_is_off_before_onnxruntime_is_loaded(golden: Path, workspace: Path) -> None:
    program = f"""
        const {{ open }} = await import('whiten');
        if ('ORT_DISABLE_TELEMETRY' in process.env) throw new Error('set too early');
        await open({json.dumps(str(golden / "bundle-v1"))});
        process.stdout.write(process.env.ORT_DISABLE_TELEMETRY);
    """
    source = (CLIENT / "src" / "node.js").read_text("utf-8")
    assert source.index("ORT_DISABLE_TELEMETRY") < source.index("import('onnxruntime-node')")
    command = ["node", "--input-type=module", "-e", program]
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=True)
    assert done.stdout == "1"


def test_wasm_gives_nearly_the_same_vectors(golden: Path, node: Call) -> None:
    """Run onnxruntime-web in Node, with the bundle's files from memory."""
    found = node("wasm.mjs", {"bundles": [str(golden / name) for name in ("bundle-v1", "bundle-v1-int8")]})
    for one in found:
        assert one["minCosine"] >= 0.98
        assert one["together"] == one["alone"] or one["precision"] == "fp32"
    assert found[0]["minCosine"] >= 0.999999
