"""A signature goes with its bundle to the hub and back, and none stays there that is not the bundle's."""

from pathlib import Path

import pytest

pytest.importorskip("model_signing", reason="needs whiten[sign]")

from support.bundles import copy_bundle
from support.cli import invoke, ok
from support.hub import Hub
from support.keys import KeyPair, key_pair
from whiten_runtime.commands.main import whiten
from whiten_runtime.signing import sign_bundle

pytestmark = pytest.mark.slow

ID = "org/signed"


@pytest.fixture
def keys(tmp_path: Path) -> KeyPair:
    return key_pair(tmp_path)


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return copy_bundle(tiny_bundle, tmp_path)


def test_a_signature_survives_push_and_download(hub: Hub, bundle: Path, keys: KeyPair) -> None:
    sign_bundle(bundle, keys.private)
    ok("push", bundle, ID)
    assert hub.repositories[ID]["model.sig"] == (bundle / "model.sig").read_bytes()
    assert f"{ID}: signed by key {keys.public}" in ok("verify", ID, "--public-key", keys.public).stderr
    hub.asked.clear()
    ok("verify", ID, "--public-key", keys.public)
    assert not hub.asked, "it is in the cache"


def test_an_unsigned_repository_is_refused_where_an_author_is_asked_for(hub: Hub, bundle: Path, keys: KeyPair) -> None:
    ok("push", bundle, ID)
    result = invoke(whiten, "verify", ID, "--public-key", keys.public)
    assert result.exit_code == 1
    assert "is not signed" in result.stderr


def test_an_unsigned_bundle_removes_the_signature_of_an_older_one(hub: Hub, bundle: Path, keys: KeyPair) -> None:
    sign_bundle(bundle, keys.private)
    ok("push", bundle, ID)
    (bundle / "model.sig").unlink()
    assert "removed files of an older bundle: model.sig" in ok("push", bundle, ID).stderr
    assert "model.sig" not in hub.repositories[ID]
