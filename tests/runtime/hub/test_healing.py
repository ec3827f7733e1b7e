"""Test commits in the hub's cache that are not whole bundles: the hub is asked once for a newer one."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from support.cli import ok
from support.hub_cache import COMMIT
from support.hub_server import Hub
from whiten_runtime import BundleError, Encoder
from whiten_runtime.bundle.manifest import MANIFEST_FILE
from whiten_runtime.hub.locating import locate_bundle

pytestmark = pytest.mark.slow

ID = "org/tiny"
NEWER = "a" * 40
HEAD = f"HEAD /{ID}/resolve/main/{MANIFEST_FILE}"


@pytest.fixture(params=["lacks a file", "is unreadable"])
def broken(request: pytest.FixtureRequest, content: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a repository that holds no whole bundle."""
    if request.param == "lacks a file":
        return {name: data for name, data in content.items() if name != "tokenizer.json"}
    return {**content, MANIFEST_FILE: b"{"}


def refused() -> str:
    """Return the line with which the repository is refused."""
    with pytest.raises(BundleError) as caught:
        Encoder(ID)
    assert str(caught.value).isprintable()
    return str(caught.value)


def publish(hub: Hub, files: Mapping[str, bytes], commit: str = NEWER) -> None:
    """Move the main branch to a commit."""
    hub.commits.setdefault(COMMIT, hub.repositories[ID])
    hub.commits[commit] = hub.repositories[ID] = files
    hub.branches[ID, "main"] = commit


def test_a_broken_commit_is_replaced_by_the_newest(
    hub: Hub, content: Mapping[str, bytes], broken: Mapping[str, bytes]
) -> None:
    hub.repositories[ID] = broken
    refused()
    publish(hub, content)
    hub.asked.clear()
    Encoder(ID).close()
    assert hub.asked.count(HEAD) == 1
    hub.asked.clear()
    assert locate_bundle(ID).name == locate_bundle(ID, "main").name == NEWER
    assert hub.asked == []


def test_a_push_heals_what_its_own_machine_has_in_the_cache(
    hub: Hub, broken: Mapping[str, bytes], tiny_bundle: Path
) -> None:
    hub.repositories[ID] = {name: data for name, data in broken.items() if not name.startswith("other/")}
    refused()
    hub.commits[COMMIT] = hub.repositories[ID]
    ok("push", tiny_bundle, ID)
    Encoder(ID).close()


def test_the_error_says_that_the_hub_has_nothing_newer(hub: Hub, broken: Mapping[str, bytes]) -> None:
    hub.repositories[ID] = broken
    first = refused()
    hub.asked.clear()
    second = refused()
    assert second.startswith(first)
    assert second.endswith(" (the hub has no newer commit)")
    assert hub.asked.count(HEAD) == 1


def test_the_error_is_of_the_newest_commit_if_that_is_broken_too(
    hub: Hub, content: Mapping[str, bytes], broken: Mapping[str, bytes]
) -> None:
    hub.repositories[ID] = broken
    refused()
    publish(hub, {name: data for name, data in content.items() if name != "probes.json"})
    hub.asked.clear()
    assert refused() == (
        f"'{ID}' lacks probes.json, though its manifest lists it; push the bundle again (the hub's newest commit; the "
        "one in the cache is not whole either)"
    )
    assert hub.asked.count(HEAD) == 1


@pytest.mark.parametrize("offline", [False, True])
def test_a_manifest_that_cannot_be_read_without_the_hub(
    hub: Hub, content: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    from huggingface_hub import constants

    hub.repositories[ID] = {**content, MANIFEST_FILE: b"{"}
    first = refused()
    publish(hub, content)
    hub.asked.clear()
    if offline:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    else:
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
        for module in ("constants", "file_download"):
            monkeypatch.setattr(f"huggingface_hub.{module}.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    why = "HF_HUB_OFFLINE is set" if offline else "the hub is out of reach"
    assert refused().startswith(f"{first} (no newer commit could be fetched: {why}")
    assert hub.asked == []


def test_a_manifest_that_was_damaged_in_the_cache_is_fetched_again(hub: Hub, content: Mapping[str, bytes]) -> None:
    hub.repositories[ID] = content
    folder = locate_bundle(ID)
    (folder / MANIFEST_FILE).resolve().write_bytes(b"")
    hub.asked.clear()
    Encoder(ID).close()
    assert hub.asked.count(HEAD) == 1
    assert locate_bundle(ID) == folder


def test_a_commit_that_is_gone_from_the_hub(hub: Hub, content: Mapping[str, bytes], tmp_path: Path) -> None:
    """As after an interrupted download and a history that was written anew."""
    hub.repositories[ID] = content
    (locate_bundle(ID) / "tokenizer.json").unlink()
    folder, gone = tmp_path / "cache" / "models--org--tiny", "b" * 40
    (folder / "refs" / "main").write_text(gone)
    (folder / "snapshots" / COMMIT).rename(folder / "snapshots" / gone)
    with pytest.raises(BundleError, match=f"'{ID}' no longer has commit {gone}, whose tokenizer.json is not in the"):
        locate_bundle(ID, gone)
    assert locate_bundle(ID).name == COMMIT


def test_a_commit_that_was_asked_for_is_never_replaced(
    hub: Hub, content: Mapping[str, bytes], broken: Mapping[str, bytes]
) -> None:
    hub.repositories[ID] = broken
    refused()
    publish(hub, content)
    hub.asked.clear()
    with pytest.raises(BundleError, match="lacks tokenizer.json|not a manifest") as caught:
        Encoder(ID, revision=COMMIT)
    assert "newer commit" not in str(caught.value)
    assert HEAD not in hub.asked
