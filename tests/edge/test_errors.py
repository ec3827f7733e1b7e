"""Test what the JavaScript client refuses: typed errors of one line, as in Python."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

from support.edge import Call
from whiten_runtime.bundle.manifest import Manifest

pytestmark = pytest.mark.slow


def write(bundle: Path, name: str, content: bytes) -> None:
    (bundle / name).write_bytes(content)


def altered(bundle: Path, name: str) -> None:
    content = bytearray((bundle / name).read_bytes())
    content[len(content) // 2] ^= 1
    write(bundle, name, content)


def cut(bundle: Path, name: str) -> None:
    write(bundle, name, (bundle / name).read_bytes()[:-100])


def edited(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest, of which the golden bundles state no hash."""
    content = json.loads((bundle / "whiten.json").read_text("utf-8"))
    change(content)
    write(bundle, "whiten.json", json.dumps(content, indent=2).encode())


BROKEN: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "altered weights": (partial(altered, name="onnx/model.onnx"), "IntegrityError", "SHA-256 differs"),
    "altered tokenizer": (partial(altered, name="tokenizer.json"), "IntegrityError", "SHA-256 differs"),
    "altered whitening": (partial(altered, name="whitening.safetensors"), "IntegrityError", "SHA-256 differs"),
    "truncated": (partial(cut, name="onnx/model.onnx"), "IntegrityError", "bytes, but whiten.json says"),
    "missing graph": (lambda b: (b / "onnx" / "model.onnx").unlink(), "BundleError", "model.onnx: missing"),
    "missing probes": (lambda b: (b / "probes.json").unlink(), "BundleError", "probes.json: missing"),
    "missing client file": (lambda b: (b / "modules.json").unlink(), "BundleError", "modules.json: missing"),
    "no manifest": (lambda b: (b / "whiten.json").unlink(), "BundleError", "is not a whiten bundle"),
    "manifest cut": (partial(cut, name="whiten.json"), "BundleError", "not a manifest"),
    "format 2": (lambda b: edited(b, lambda m: m.update(format_version=2)), "BundleError", "bundle format 2"),
    "unknown field": (lambda b: edited(b, lambda m: m.update(colour=1)), "BundleError", "field 'colour'"),
    "unknown deep field": (
        lambda b: edited(b, lambda m: m["source"].update(colour=1)),
        "BundleError",
        "field 'source.colour'",
    ),
    "unknown listed field": (
        lambda b: edited(b, lambda m: m["whitening"]["corpus"][0].update(colour=1)),
        "BundleError",
        "field 'whitening.corpus.0.colour'",
    ),
    "field twice": (
        lambda b: write(b, "whiten.json", (b / "whiten.json").read_bytes().replace(b"{", b'{"name": "x",', 1)),
        "BundleError",
        "'name' is there twice",
    ),
    "other hash": (
        lambda b: edited(b, lambda m: m.update(manifest_sha256="0" * 64)),
        "IntegrityError",
        "manifest_sha256 is",
    ),
    "no dimension": (lambda b: edited(b, lambda m: m.pop("dimension")), "BundleError", "it has no dimension"),
    "wrong type": (lambda b: edited(b, lambda m: m.update(layers="1")), "BundleError", "layers has another type"),
    "leaves the bundle": (
        lambda b: edited(b, lambda m: m["files"].update({"../x": {"sha256": "0" * 64, "bytes": 1}})),
        "BundleError",
        "would leave the bundle",
    ),
    "other dimension": (
        lambda b: edited(b, lambda m: m.update(dimension=7)),
        None,
        "the manifest says 7 dimensions",
    ),
    "a pipe": (lambda b: ((b / "probes.json").unlink(), (b / "probes.json").mkdir()), "BundleError", "not a regular"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_bundle(name: str, golden: Path, tmp_path: Path, client: Call) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(golden / "bundle-v1", bundle)
    breaking, error, words = BROKEN[name]
    breaking(bundle)
    found = client(bundle, ("encode", "a text"))[0]
    assert found["error"] == (error or "BundleError")
    assert words in found["message"]
    assert "\n" not in found["message"]


def test_verify_notices_what_opening_does_not(golden: Path, tmp_path: Path, client: Call) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(golden / "bundle-v1", bundle)
    altered(bundle, "onnx/model.onnx")
    (found,) = client(bundle, ("verify",), verifyHashes=False)
    assert found["error"] in ("IntegrityError", "BundleError")  # where the graph is not readable, opening fails
    shutil.rmtree(bundle)
    shutil.copytree(golden / "bundle-v1", bundle)
    edited(bundle, lambda manifest: manifest.update(precision="fp32", pad_token_id=0, max_seq_length=3))
    (found,) = client(bundle, ("verify",))
    assert found["error"] == "ParityError"
    assert "not what the reference computed" in found["message"]


CALLS: tuple[tuple[tuple[Any, ...], str, str], ...] = (
    (("encode", 3), "TextError", "texts is 3; wanted a string or an array"),
    (("encode", ["a", None]), "TextError", "texts[1] is null; wanted a string"),
    (("encode", ["a", ["b"]]), "TextError", 'texts[1] is ["b"]'),
    (("encode", "a", {"promptName": "no such"}), "UsageError", "the bundle's prompts are: none"),
    (("encode", "a", {"promptName": "x", "prompt": "y"}), "UsageError", "were both given"),
    (("encode", "a", {"prompt": 3}), "UsageError", "prompt is 3; wanted a string"),
    (("encode", "a", {"truncateDim": 0}), "UsageError", "truncateDim is 0; wanted a whole number from 1 to 32"),
    (("encode", "a", {"truncateDim": 1.5}), "UsageError", "truncateDim is 1.5"),
    (("encode", "a", {"batchSize": 0}), "UsageError", "batchSize is 0"),
    (("encode", "a", {"precision": "int4"}), "UsageError", "precision is 'int4'; wanted float32 or int8"),
    (("encode", "a", {"ranges": [[0], [1]]}), "UsageError", "ranges are for precision int8 and uint8"),
    (("encode", "a", {"precision": "int8", "ranges": [[0], [1]]}), "UsageError", "ranges have shape [2, 1]"),
    (("encode", "a", {"normalise": True}), "UsageError", "there is no option 'normalise'"),
    (("encode", "word " * 200, {"truncate": False}), "TooLongError", "tokens, but the bundle takes"),
    (("transform", [[1, 2]]), "UsageError", "this bundle takes texts, not vectors; call encode"),
)


def test_wrong_arguments(golden: Path, client: Call) -> None:
    found = client(golden / "bundle-v1", *(call for call, _, _ in CALLS))
    for result, (call, error, words) in zip(found, CALLS, strict=True):
        assert result["error"] == error, call
        assert words in result["message"]
        assert "\n" not in result["message"]


def test_wrong_options_and_places(golden: Path, tmp_path: Path, client: Call) -> None:
    assert "threads is 0" in client(golden / "bundle-v1", threads=0)[0]["message"]
    assert "there is no option 'thread'" in client(golden / "bundle-v1", thread=1)[0]["message"]
    assert "is not a whiten bundle" in client(tmp_path / "nowhere")[0]["message"]
    assert client("")[0]["error"] == "UsageError"


def test_a_closed_encoder(golden: Path, client: Call) -> None:
    closed, found = client(golden / "bundle-v1", ("close",), ("encode", "a"))
    assert closed is None
    assert found == {"error": "WhitenError", "message": "this encoder was closed; open another"}


class Handler(SimpleHTTPRequestHandler):
    """Serves bundles; of those in a folder named "cut", it sends a part of each graph and hangs up."""

    def log_message(self, *arguments: object) -> None:
        pass

    def copyfile(self, source: Any, target: Any) -> None:
        content = source.read()
        target.write(content[: len(content) // 2] if "/cut/onnx" in self.path else content)


@pytest.fixture
def server(tmp_path: Path) -> Any:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path))) as serving:
        Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()


def test_bundles_at_an_address(golden: Path, tmp_path: Path, server: str, client: Call) -> None:
    for name in ("whole", "cut", "altered", "missing"):
        shutil.copytree(golden / "bundle-v1", tmp_path / name)
    altered(tmp_path / "altered", "tokenizer.json")
    (tmp_path / "missing" / "onnx" / "model.onnx").unlink()
    here, proof = client(golden / "bundle-v1", ("encode", "a text"), ("verify",))
    assert client(f"{server}/whole", ("encode", "a text"), ("verify",)) == [here, proof]
    for name, error, words in (
        ("cut", "BundleError", "broke off after"),
        ("altered", "IntegrityError", "SHA-256 differs"),
        ("missing", "BundleError", "model.onnx: missing"),
        ("nowhere", "BundleError", "whiten.json: missing"),
    ):
        (found,) = client(f"{server}/{name}")
        assert found["error"] == error, found
        assert words in found["message"]
    (found,) = client("http://127.0.0.1:9/x")
    assert found["error"] == "BundleError"
    assert "cannot be fetched" in found["message"]


def test_the_client_knows_the_fields_of_the_manifest(node: Call) -> None:
    """Compare with the records of Python, at every depth."""

    def fields(record: type) -> set[str]:
        return {field.encode_name for field in msgspec.structs.fields(record)}

    from whiten_runtime.bundle import records

    known = node("fields.mjs", None)
    classes = {
        "manifest": Manifest,
        "source": records.Source,
        "whitening": records.WhiteningRecord,
        "settled": records.SettledRecord,
        "corpus": records.CorpusRecord,
        "isotropy": records.IsotropyRecord,
        "alignment": records.AlignmentRecord,
        "choice": records.ChoiceRecord,
        "candidate": records.CandidateRecord,
        "quantization": records.QuantizationRecord,
        "parity": records.ParityRecord,
        "file": records.FileRecord,
    }
    assert {name: set(names) for name, names in known.items()} == {
        name: fields(record) for name, record in classes.items()
    }
