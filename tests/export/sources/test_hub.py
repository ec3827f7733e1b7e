"""Test what is downloaded from a hub, which here is a server on this machine, and what is found in its cache."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from huggingface_hub import errors
from starlette.exceptions import HTTPException

from support.hub import COMMIT, Files, Hub, commit_of, make_snapshot
from whiten import UsageError, WhitenError
from whiten_export.sources.resolve import download, resolve

OLD = "sentence_transformers.models."
POOLING = b'{"word_embedding_dimension": 4, "pooling_mode_mean_tokens": true}'
OTHERS = {
    "pytorch_model.bin": b"pickled",
    "model_int8.safetensors": b"of another precision",
    "model.fp16.safetensors": b"of another precision",
    "model-00001-of-00002.safetensors": b"of an older copy",
    "tf_model.h5": b"tensorflow",
    "onnx/model.onnx": b"onnx",
    "onnx/config.json": b"{}",
    "openvino/openvino_model.bin": b"openvino",
    "openvino/config.json": b"{}",
    "README.md": b"# Model",
    "modeling.py": b"print()",
}


def modules(*kinds: str, first: str = "") -> bytes:
    paths = [first, *(f"{index}_{kind}" for index, kind in enumerate(kinds[1:], 1))]
    return json.dumps([{"path": path, "type": OLD + kind} for path, kind in zip(paths, kinds, strict=True)]).encode()


def indexed(*parts: str) -> bytes:
    return json.dumps({"weight_map": {str(number): part for number, part in enumerate(parts)}}).encode()


PLAIN = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"weights"}
DENSE = PLAIN | {
    "modules.json": modules("Transformer", "Pooling", "Dense", "Dense", "Normalize"),
    "1_Pooling/config.json": POOLING,
    "2_Dense/config.json": b"{}",
    "2_Dense/model.safetensors": b"dense",
    "2_Dense/pytorch_model.bin": b"pickled dense",
    "3_Dense/config.json": b"{}",
    "3_Dense/pytorch_model.bin": b"another dense",
}
IN_FOLDER = {
    "modules.json": modules("Transformer", "Pooling", first="0_Transformer"),
    "0_Transformer/config.json": b"{}",
    "0_Transformer/vocab.txt": b"[PAD]",
    "0_Transformer/pytorch_model.bin": b"weights",
    "1_Pooling/config.json": POOLING,
}
ROUTES = {
    "modules.json": modules("Router"),
    "router_config.json": json.dumps(
        {
            "types": {
                "query_0_StaticEmbedding": OLD + "StaticEmbedding",
                "document_0_Transformer": OLD + "Transformer",
            },
            "structure": {"query": ["query_0_StaticEmbedding"], "document": ["document_0_Transformer"]},
        }
    ).encode(),
    "query_0_StaticEmbedding/tokenizer.json": b"{}",
    "query_0_StaticEmbedding/model.safetensors": b"table",
    "document_0_Transformer/config.json": b"{}",
    "document_0_Transformer/model-00001-of-00002.safetensors": b"first half",
    "document_0_Transformer/model-00002-of-00002.safetensors": b"second half",
    "document_0_Transformer/model.safetensors.index.json": indexed(
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    ),
}
TOKENIZERS = PLAIN | dict.fromkeys(
    ("source.spm", "qwen.tiktoken", "bpe.codes", "prophetnet.tokenizer", "vocab.bpe", "spiece.model"), b"words"
)
OF_SETTINGS = ("config.json", "model.safetensors.index.json")
RENAMED = PLAIN | {
    "config.json": b'{"model_type": "bert", "transformers_weights": "mine.safetensors"}',
    "mine.safetensors": b"weights",
}
PICKLED = {"config.json": b"{}", "pytorch_model.bin": b"weights", "onnx/model.onnx": b"onnx"}
TRAINED = DENSE | {
    "checkpoint-500/config.json": b"{}",
    "checkpoint-500/model.safetensors": b"half trained",
    "checkpoint-500/1_Pooling/config.json": POOLING,
    "eval/similarity_results.json": b"{}",
    "eval/model.safetensors": b"another",
    "onnx/model.onnx": b"onnx",
}
ONNX = {"config.json": b"{}", "onnx/model.onnx": b"onnx", "onnx/model.onnx_data": b"data", "onnx/model_O3.onnx": b"x"}
ADAPTERS = PLAIN | {
    "adapters/retrieval/adapter_config.json": b"{}",
    "adapters/retrieval/adapter_model.safetensors": b"adapter",
    "clustering/adapter_config.json": b"{}",
    "a/b/c/d/adapter_config.json": b"{}",
}
REPOSITORIES: Mapping[str, Mapping[str, bytes]] = {
    "some/plain": PLAIN | OTHERS,
    "some/dense": DENSE | OTHERS,
    "some/folder": IN_FOLDER | {"0_Transformer/tf_model.h5": b"tensorflow"},
    "some/routes": ROUTES | {"document_0_Transformer/model.fp16-00001-of-00001.safetensors": b"of another precision"},
    "some/tokenizers": TOKENIZERS,
    "some/pickled": PICKLED,
    "some/renamed": RENAMED,
    "some/trained": TRAINED,
    "some/halves": PLAIN | {"checkpoint-500/config.json": b"{}", "checkpoint-500/model.safetensors": b"half trained"},
    "some/onnx": ONNX,
    "some/adapters": ADAPTERS,
    "some/empty": {"config.json": b"{}", "README.md": b""},
    "some/weights": {"model.safetensors": b"weights"},
}


@pytest.fixture
def hub(hub: Hub) -> Hub:
    """Serve the repositories to this process, which has an empty cache."""
    hub.repositories |= REPOSITORIES
    return hub


@pytest.mark.parametrize(
    ("name", "code", "fetched"),
    [
        ("plain", False, {*PLAIN, "README.md"}),
        ("plain", True, {*PLAIN, "README.md", "modeling.py"}),
        ("dense", False, {*DENSE, "README.md"} - {"2_Dense/pytorch_model.bin"}),
        ("folder", False, set(IN_FOLDER)),
        ("routes", False, set(ROUTES)),
        ("tokenizers", False, set(TOKENIZERS)),
        ("renamed", False, set(RENAMED) - {"model.safetensors"}),
        ("pickled", False, {"config.json", "pytorch_model.bin"}),
        ("trained", False, set(DENSE) - {"2_Dense/pytorch_model.bin"}),
        ("halves", False, set(PLAIN)),
        ("onnx", False, {"config.json", "onnx/model.onnx", "onnx/model.onnx_data"}),
        (
            "adapters",
            False,
            {*PLAIN, "adapters/retrieval/adapter_config.json", "clustering/adapter_config.json"},
        ),
    ],
)
def test_weights_of_all_modules_are_downloaded_and_code_if_it_is_allowed(
    hub: Hub, name: str, code: bool, fetched: set[str]
) -> None:
    folder = download(f"some/{name}", None, code, None)
    assert folder.name == commit_of(hub.repositories[f"some/{name}"])
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == fetched
    assert sorted(hub.fetched) == sorted(fetched)  # each once


@pytest.mark.parametrize("name", ["adapters", "dense", "folder", "onnx", "plain", "routes", "trained"])
def test_a_downloaded_model_needs_no_second_download(hub: Hub, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub_id = f"some/{name}"
    folder = download(hub_id, None, False, None)
    hub.fetched.clear()
    commit = commit_of(hub.repositories[hub_id])
    assert download(hub_id, "main", False, None) == download(hub_id, commit, False, None) == folder
    assert hub.fetched == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert download(hub_id, None, False, None) == folder


@pytest.mark.skipif(not hasattr(errors, "IncompleteSnapshotError"), reason="older clients keep no list of files")
@pytest.mark.parametrize("name", ["dense", "plain", "trained"])
def test_an_incomplete_copy_of_descriptions_is_not_taken_without_the_hub(
    hub: Hub, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    folder = download(f"some/{name}", None, False, None)
    (folder / ("tokenizer.json" if name == "plain" else "1_Pooling/config.json")).unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(WhitenError, match="is not in the local cache and HF_HUB_OFFLINE is set"):
        download(f"some/{name}", None, False, None)


def test_a_copy_of_descriptions_is_enough_for_a_plan_without_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub.repositories["some/plain"] = PLAIN | {"config.json": b'{"model_type": "bert"}'}
    folder = download("some/plain", None, False, None, with_weights=False)
    assert not (folder / "model.safetensors").exists()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve("some/plain", with_weights=False).directory == folder
    with pytest.raises(UsageError, match="has no weights .*or a whole copy in the hub's cache"):
        resolve("some/plain")


@pytest.mark.parametrize("status", [403, 418])
def test_a_hub_that_refuses_to_list_files_is_as_none(hub: Hub, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(hub_id: str) -> dict[str, Files]:
        raise HTTPException(status)

    folder = download("some/trained", None, False, None)
    monkeypatch.setattr(hub, "revisions", refuse)
    assert download("some/trained", None, False, None) == folder


@pytest.mark.parametrize("kind", ["model-{}.safetensors", "pytorch_model-{}.bin"])
def test_an_interrupted_download_is_completed(hub: Hub, kind: str) -> None:
    parts = [kind.format(f"0000{part}-of-00002") for part in (1, 2)]
    index = kind.replace("-{}", "") + ".index.json"
    hub.repositories = {
        "some/large": {"config.json": b"{}", index: indexed(*parts)} | {name: name.encode() for name in parts}
    }
    folder = download("some/large", None, False, None)
    hub.fetched.clear()
    (folder / parts[1]).resolve().unlink()
    (folder / parts[1]).unlink()
    assert download("some/large", None, False, None) == folder
    assert (hub.fetched, (folder / parts[1]).read_bytes()) == ([parts[1]], parts[1].encode())


@pytest.mark.parametrize(
    ("name", "revision", "kind", "message"),
    [
        ("some/empty", None, WhitenError, "has no config.json or no weights"),
        ("some/weights", None, WhitenError, "has no config.json or no weights"),
        ("some/nothing", None, UsageError, "'some/nothing' does not exist on the hub, or is private"),
        ("some/plain", "v9", UsageError, "'some/plain' has no revision 'v9'"),
        ("some/plain", "../v9", UsageError, "revision is '../v9'; wanted the name of a branch or tag, or a commit"),
    ],
)
def test_what_is_no_model_is_refused(
    hub: Hub, name: str, revision: str | None, kind: type[WhitenError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        download(name, revision, False, None)
    assert type(caught.value) is kind
    assert "model.safetensors" not in hub.fetched


@pytest.mark.parametrize("with_weights", [True, False])
@pytest.mark.parametrize("content", [b"[]", b"7", b"null", b'["a"]'])
@pytest.mark.parametrize(
    "name",
    ["config.json", "modules.json", "router_config.json", *(f"document_0_Transformer/{name}" for name in OF_SETTINGS)],
)
def test_files_of_settings_that_hold_something_else_are_refused(
    hub: Hub, name: str, content: bytes, with_weights: bool
) -> None:
    files = PLAIN if name == "config.json" else ROUTES
    hub.repositories["some/damaged"] = files | {name: content}
    with pytest.raises(WhitenError, match=r"\.json: ") as caught:
        resolve("some/damaged", route=None if files is PLAIN else "document", with_weights=with_weights)
    assert "\n" not in str(caught.value)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Mapping[str, bytes]], Path]:
    """Return a function that puts files into the cache as a repository, and returns their folder."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(hub_id: str, files: Mapping[str, bytes]) -> Path:
        folder = make_snapshot(tmp_path / "hub", hub_id)
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder

    return put


Cache = Callable[[str, Mapping[str, bytes]], Path]


@pytest.mark.parametrize("files", [PLAIN, DENSE, IN_FOLDER, ROUTES, PICKLED, ONNX])
def test_a_cached_model_needs_no_network(cache: Cache, files: Mapping[str, bytes]) -> None:
    folder = cache("some/model", files)
    assert download("some/model", None, False, None) == download("some/model", COMMIT, False, None) == folder


def test_revisions_that_the_cache_has_are_told(cache: Cache) -> None:
    folder = cache("some/model", PLAIN)
    refs = folder.parents[1] / "refs"
    (refs / "refs" / "pr").mkdir(parents=True)
    (refs / "main").rename(refs / "refs" / "pr" / "27")
    assert resolve("some/model@refs/pr/27").directory == folder
    for name in ("some/model", "some/model@main", "some/model@refs%2Fpr%2F27"):
        with pytest.raises(WhitenError, match="the cache has refs/pr/27: name it as some/model@refs/pr/27"):
            resolve(name)


def test_a_revision_follows_the_name(hub: Hub) -> None:
    hub.repositories["some/plain"] = dict(PLAIN)
    found = resolve("some/plain@main")
    assert (found.name, found.hub_id, found.revision) == ("plain", "some/plain", commit_of(PLAIN))
    for name, message in (("v9", "'some/plain' has no revision 'v9'"), ("", "revision is ''; wanted the name")):
        with pytest.raises(UsageError, match=message):
            resolve(f"some/plain@{name}")


def test_a_cached_model_is_resolved_to_its_network_and_modules(cache: Cache) -> None:
    folder = cache("some/model", IN_FOLDER)
    found = resolve("some/model")
    assert (found.name, found.hub_id, found.revision, found.root) == ("model", "some/model", COMMIT, folder)
    assert (found.directory, found.weights) == (
        folder / "0_Transformer",
        (folder / "0_Transformer" / "pytorch_model.bin",),
    )
    shutil.rmtree(folder / "0_Transformer")
    with pytest.raises(UsageError, match="has no folder .*0_Transformer"):
        resolve("some/model")


@pytest.mark.parametrize(
    ("name", "former"),
    [("bert-base", "bert-base-uncased"), ("roberta-base", "roberta-base"), ("albert-base", "albert-base-v1")],
)
def test_a_model_cached_under_its_former_name_is_found(cache: Cache, name: str, former: str) -> None:
    folder = cache(former, PLAIN)
    found = resolve(name)
    assert (found.directory, found.revision) == (folder, COMMIT)
    assert found.hub_id is not None
    assert found.hub_id.endswith(f"/{former}")


def test_the_present_name_goes_before_the_former(cache: Cache) -> None:
    cache("bert-base-uncased", PLAIN)
    folder = cache("google-bert/bert-base-uncased", PLAIN)
    assert resolve("bert-base").directory == folder


def test_other_names_are_not_looked_for_in_the_cache(cache: Cache) -> None:
    cache("bert", PLAIN)
    cache("some/bert-base-uncased", PLAIN)
    cache("model", PLAIN)
    for name in ("bert-base", "some/model"):
        with pytest.raises(WhitenError, match="is not in the local cache and HF_HUB_OFFLINE is set"):
            resolve(name)
