"""Test the JavaScript client in Node: the vectors of Python's Encoder, and what it refuses in one line."""

import json
import shutil
import unicodedata
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from support.checkpoints import save_model2vec
from support.cli import ok
from support.corpus import NASTY, sentences
from support.vectors import ROUNDING, worst
from whiten import Encoder

pytestmark = pytest.mark.slow

Bundles = Callable[[str], Path]
OTHER_IDS = ("𠀀", "Σ")
"""Parts of texts of which @huggingface/tokenizers 0.2 makes other ids: beyond the basic plane, and final sigma."""
TEXTS = [*sentences(40), *NASTY, "long " * 400, "lone \ud800 surrogate \udc00 here", "😀" * 11_000 + " the fox runs"]
COMPOSED = (
    unicodedata.normalize("NFD", "한국어 문장, école, Ünïcödé Å"),
    "ｶﾞｷﾞ half-width ｶﾅ",
    "ﬁne ﬀ ™ ① ½ ㎏ ｗｉｄｅ",
    "a\r\nb\u200bc\u00add",
    "e\u0301\u0323 a\u0308\u0304",
)
LOWER_CASING = ("fp32", "fp16", "int8", "lookup")
PLAIN = [text for text in TEXTS if not any(part in text for part in OTHER_IDS)]


def test_int8_vectors_of_minilm_are_those_of_python(minilm_int8_bundle: Path, client: Callable[..., Any]) -> None:
    texts = sentences(200)
    (vectors,) = client(minilm_int8_bundle, ("encode", texts))
    with Encoder(minilm_int8_bundle) as encoder:
        assert worst(vectors, encoder.encode(texts)) <= 1e-5


@pytest.mark.parametrize("name", ["fp32", "fp16", "int8", "lookup", "cls", "last", "sif", "xlmr", "embeddinggemma"])
def test_vectors_and_proof(name: str, bundle: Bundles, client: Callable[..., Any]) -> None:
    path = bundle(name)
    texts = {"xlmr": [*TEXTS, *COMPOSED]}.get(name, PLAIN if name in LOWER_CASING else TEXTS[:40])
    vectors, alone, proof = client(path, ("encode", texts), ("encode", texts[0]), ("verify",))
    with Encoder(path) as encoder:
        want = encoder.encode(texts)
        # A layer for one token of each text rounds by the number of texts in a batch; this whitening multiplies that.
        bound = ROUNDING if name == "cls" else 1e-5
        assert worst(vectors, want) <= bound
        assert worst([alone], want[:1]) <= bound
        assert abs(proof["minCosine"] - encoder.verify().min_cosine) <= 1e-6


@pytest.mark.parametrize("web", [False, True], ids=["node", "web"])
def test_texts_of_300_and_3000_tokens_have_the_vectors_of_python(
    web: bool, long_bundle: Path, node: Callable[..., Any]
) -> None:
    texts = ["paper " * 100, "one stone and two rivers " * 600, "short"]
    given = {"bundle": str(long_bundle), "options": {}, "calls": [["encode", texts]], "web": web}
    (vectors,) = node("drive.mjs", given)
    with Encoder(long_bundle) as encoder:
        assert worst(vectors, encoder.encode(texts)) <= 1e-5


@pytest.mark.parametrize(
    ("name", "method", "options"),
    [
        ("fp32", "encode", {"truncateDim": 8, "normalize": True}),
        ("embeddinggemma", "encode", {"promptName": "query"}),
        ("embeddinggemma", "encode", {"prompt": "around {text}, {text} $& and $1"}),
        ("embeddinggemma", "encodeQuery", {}),
        ("embeddinggemma", "encodeDocument", {}),
    ],
    ids=str,
)
def test_options(name: str, method: str, options: dict[str, Any], bundle: Bundles, client: Callable[..., Any]) -> None:
    names = {"truncateDim": "truncate_dim", "normalize": "normalize_embeddings", "promptName": "prompt_name"}
    methods = {"encode": "encode", "encodeQuery": "encode_query", "encodeDocument": "encode_document"}
    path, texts = bundle(name), TEXTS[:40]
    (vectors,) = client(path, (method, texts, options))
    with Encoder(path) as encoder:
        want = getattr(encoder, methods[method])(texts, **{names.get(key, key): one for key, one in options.items()})
        plain = encoder.encode(texts)
    assert worst(vectors, want) <= 1e-5
    assert want.shape != plain.shape or worst(vectors, plain) > 1e-3  # the options change something


def write(bundle: Path, name: str, content: bytes) -> None:
    (bundle / name).write_bytes(content)


def altered(bundle: Path, name: str) -> None:
    content = bytearray((bundle / name).read_bytes())
    content[len(content) // 2] ^= 1
    write(bundle, name, content)


def edited(bundle: Path, **changes: Any) -> None:
    content = json.loads((bundle / "whiten.json").read_text("utf-8")) | changes
    content.pop("manifest_sha256", None)
    write(bundle, "whiten.json", json.dumps(content).encode())


def with_other_ids(bundle: Path) -> None:
    """Swap the ids of two words of the probes, and give the file's new hash."""
    import hashlib

    content = json.loads((bundle / "tokenizer.json").read_text("utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["the"], vocabulary["a"] = vocabulary["a"], vocabulary["the"]
    data = json.dumps(content).encode()
    write(bundle, "tokenizer.json", data)
    files = json.loads((bundle / "whiten.json").read_text("utf-8"))["files"]
    files["tokenizer.json"] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    edited(bundle, files=files)


def test_texts_are_cut_at_the_letters_at_which_model2vec_cuts_them(tmp_path: Path, client: Callable[..., Any]) -> None:
    bundle = tmp_path / "bundle"
    ok("export", save_model2vec(tmp_path / "model", max_length=64), "--out", bundle)
    texts = ["ag ah", "ag bh " * 2000, "aaaaaaaa " * 300 + "bbbbbbbb " * 300, "𠀀" * 100 + "aaaaaaaa " * 9]
    vectors, refused = client(bundle, ("encode", texts), ("encode", texts, {"truncate": False}))
    with Encoder(bundle) as encoder:
        assert worst(vectors, encoder.encode(texts)) <= 1e-6
    assert "texts[1] has more than the 128 characters that the bundle takes" in refused["message"]


BROKEN: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "altered graph": (partial(altered, name="onnx/model.onnx"), "BundleError", "its SHA-256 differs"),
    "altered tokenizer": (partial(altered, name="tokenizer.json"), "BundleError", "its SHA-256 differs"),
    "missing graph": (lambda b: (b / "onnx" / "model.onnx").unlink(), "BundleError", "model.onnx: missing"),
    "no manifest": (lambda b: (b / "whiten.json").unlink(), "BundleError", "is not a whiten bundle"),
    "manifest cut": (lambda b: write(b, "whiten.json", b'{"format_version": 1,'), "BundleError", "not JSON"),
    "manifest null": (lambda b: write(b, "whiten.json", b"null"), "BundleError", "no object of JSON"),
    "manifest a list": (lambda b: write(b, "whiten.json", b"[]"), "BundleError", "no object of JSON"),
    "no dimension": (lambda b: edited(b, dimension=None), "BundleError", "dimension is null; wanted a whole number"),
    "no length": (lambda b: edited(b, max_seq_length="9"), "BundleError", "max_seq_length is '9'; wanted a whole"),
    "no letters": (lambda b: edited(b, max_characters=0), "BundleError", "max_characters is 0; wanted a whole number"),
    "no padding": (lambda b: edited(b, pad_token_id=-1), "BundleError", "pad_token_id is -1; wanted a whole number"),
    "format 2": (lambda b: edited(b, format_version=2), "BundleError", "bundle format 2"),
    "of vectors": (lambda b: edited(b, input="vectors"), "BundleError", "takes vectors, not texts"),
    "unknown field": (lambda b: edited(b, score_scale=2), "BundleError", "has the field 'score_scale', which"),
    "unknown field of a record": (
        lambda b: edited(b, source=json.loads((b / "whiten.json").read_text("utf-8"))["source"] | {"blur": 1}),
        "BundleError",
        "has the field 'source.blur', which this version of whiten does not know; upgrade whiten",
    ),
    "unknown precision": (lambda b: edited(b, precision="fp8"), "BundleError", "precision is 'fp8'; wanted fp32 or"),
    "unknown side": (lambda b: edited(b, truncation_side="both"), "BundleError", "truncation_side is 'both'; wanted"),
    "other outputs": (lambda b: edited(b, outputs="tokens"), "BundleError", "outputs is 'tokens', which only"),
    "rounded": (lambda b: edited(b, vectors="int8"), "BundleError", "vectors is 'int8', which only"),
    "other ids": (with_other_ids, "ParityError", "perhaps by other token ids; use whiten in Python"),
    "other length": (lambda b: edited(b, max_seq_length=3), "ParityError", "get other vectors here than in Python"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_bundle(name: str, golden: Path, tmp_path: Path, client: Callable[..., Any]) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(golden / "bundle-v1", bundle)
    breaking, error, words = BROKEN[name]
    breaking(bundle)
    (found,) = client(bundle)
    assert found["error"] == error
    assert words in found["message"]
    assert "\n" not in found["message"]


def test_the_session_is_released_where_the_proof_fails(golden: Path, tmp_path: Path, node: Callable[..., Any]) -> None:
    for name, breaking in (("ids", with_other_ids), ("probes", partial(altered, name="probes.json"))):
        shutil.copytree(golden / "bundle-v1", tmp_path / name)
        breaking(tmp_path / name)
    found = node("released.mjs", [str(tmp_path / name) for name in ("ids", "probes")])
    assert found == {"created": 2, "released": 2, "errors": ["ParityError", "BundleError"]}


CALLS: tuple[tuple[tuple[Any, ...], str], ...] = (
    (("encode", 3), "texts is 3; wanted a string or an array"),
    (("encode", ["a", None]), "texts[1] is null; wanted a string"),
    (("encode", "a", {"promptName": "no such"}), "the bundle's prompts are: none"),
    (("encode", "a", {"promptName": "x", "prompt": "y"}), "were both given"),
    (("encode", "a", {"truncateDim": 0}), "truncateDim is 0; wanted a whole number from 1 to 32"),
    (("encode", "a", {"normalise": True}), "there is no option 'normalise'"),
    (("encode", "word " * 200, {"truncate": False}), " tokens, but the bundle takes "),
)


def test_wrong_arguments(golden: Path, tmp_path: Path, client: Callable[..., Any]) -> None:
    found = client(golden / "bundle-v1", *(call for call, _ in CALLS), ("close",), ("encode", "a"))
    for result, (call, words) in zip(found, CALLS, strict=False):
        assert result["error"] == "UsageError", call
        assert words in result["message"]
    assert found[-1] == {"error": "WhitenError", "message": "this encoder was closed; open another"}
    assert "threads is 0" in client(golden / "bundle-v1", threads=0)[0]["message"]
    assert "is not a whiten bundle" in client(tmp_path / "nowhere")[0]["message"]


@pytest.fixture
def server(tmp_path: Path) -> Any:
    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path))) as serving:
        Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()


def test_bundles_at_an_address(golden: Path, tmp_path: Path, server: str, client: Callable[..., Any]) -> None:
    for name in ("whole", "altered"):
        shutil.copytree(golden / "bundle-v1", tmp_path / name)
    altered(tmp_path / "altered", "onnx/model.onnx")
    assert client(f"{server}/whole", ("encode", "a text")) == client(golden / "bundle-v1", ("encode", "a text"))
    for address, words in (
        (f"{server}/altered", "SHA-256 differ"),
        (f"{server}/nowhere", "the server says 404"),
        ("http://127.0.0.1:9/x", "cannot be fetched"),
    ):
        (found,) = client(address)
        assert (found["error"], words in found["message"]) == ("BundleError", True)
