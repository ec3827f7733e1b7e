"""Opening a bundle: what cannot name one, and the parity proof of verify=True."""

import hashlib
import pickle
import shutil
from collections.abc import Callable
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from support.bundles import copy_bundle, edit_manifest, rewrite_file
from support.cli import refused
from whiten import BundleError, Encoder, IntegrityError, ParityError, VectorWhitener
from whiten_runtime.bundle.bundle import PROBE_VECTORS_FILE
from whiten_runtime.bundle.manifest import MANIFEST_FILE


def test_an_empty_text_on_the_command_line(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden / "bundle-v1")
    assert "bundle is an empty text" in refused("embed", "", "a text")


KINDS = {"bundle-v1": Encoder, "bundle-v1-int8": Encoder, "bundle-v1-vectors": VectorWhitener}


def test_a_bundle_of_another_kind_is_refused(golden: Path) -> None:
    with pytest.raises(BundleError, match="VectorWhitener"):
        Encoder(golden / "bundle-v1-vectors")
    with pytest.raises(BundleError, match="Encoder"):
        VectorWhitener(golden / "bundle-v1")


def turn_probes(bundle: Path) -> None:
    """Let the reference's vectors be others, as if this machine computed the bundle wrongly."""
    arrays = load_file(bundle / PROBE_VECTORS_FILE)
    turned = np.roll(arrays["embeddings"], 1, axis=1)
    rewrite_file(bundle, PROBE_VECTORS_FILE, save(arrays | {"embeddings": turned}))


@pytest.mark.parametrize("name", KINDS)
def test_a_bundle_that_computes_what_its_reference_did_opens(golden: Path, name: str) -> None:
    with KINDS[name](golden / name, verify=True) as opened, pickle.loads(pickle.dumps(opened)) as again:
        assert again.manifest == opened.manifest


@pytest.mark.parametrize("name", KINDS)
def test_one_that_computes_something_else_is_refused(golden: Path, tmp_path: Path, name: str) -> None:
    bundle = copy_bundle(golden / name, tmp_path)
    turn_probes(bundle)
    kind = KINDS[name]
    kind(bundle).close()
    with pytest.raises(
        ParityError, match=r"copy: not what (torch|numpy) .* computed, on CPUExecutionProvider: .*; wanted"
    ):
        kind(bundle, verify=True)


def test_a_copy_in_another_process_is_proven_too(golden: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(golden / "bundle-v1", tmp_path)
    packed = pickle.dumps(Encoder(bundle, verify=True, verify_hashes=False))
    manifest = (bundle / MANIFEST_FILE).read_bytes()
    turn_probes(bundle)
    (bundle / MANIFEST_FILE).write_bytes(manifest)
    with pytest.raises(ParityError):
        pickle.loads(packed)


def by_pickle(opened: Encoder | VectorWhitener) -> Callable[[], object]:
    packed = pickle.dumps(opened)
    return lambda: pickle.loads(packed)


def by_pickle_of_a_copy(opened: Encoder | VectorWhitener) -> Callable[[], object]:
    return by_pickle(pickle.loads(pickle.dumps(opened)))


COPIES: tuple[Callable[[Any], Callable[[], object]], ...] = (
    by_pickle,
    by_pickle_of_a_copy,
    lambda opened: lambda: copy(opened),
    lambda opened: lambda: deepcopy([opened]),
)


@pytest.mark.parametrize("name", ["bundle-v1", "bundle-v1-vectors"])
@pytest.mark.parametrize("way", range(len(COPIES)))
def test_a_copy_is_of_the_same_bundle(golden: Path, tmp_path: Path, name: str, way: int) -> None:
    bundle = copy_bundle(golden / name, tmp_path)
    with KINDS[name](bundle) as opened:
        again = COPIES[way](opened)
        (bundle / "README.md").write_text("# Written by another program")
        again()
        bundle.rename(tmp_path / "before")
        other = copy_bundle(golden / name, tmp_path, name="another")
        assert other == bundle
        with pytest.raises(IntegrityError, match=f"^{bundle}: "):
            again()
        shutil.rmtree(bundle)
        (tmp_path / "before").rename(bundle)
        again()


def test_the_hash_of_a_bundle_is_that_of_its_manifest(golden: Path) -> None:
    for name, kind in KINDS.items():
        with kind(golden / name) as opened:
            assert opened.bundle_sha256 == hashlib.sha256((golden / name / MANIFEST_FILE).read_bytes()).hexdigest()


def test_a_wrong_length_is_seen_by_the_proof(golden: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(golden / "bundle-v1", tmp_path)
    edit_manifest(bundle, lambda manifest: manifest.update(max_seq_length=5))
    Encoder(bundle).close()
    with pytest.raises(ParityError, match=r"not what torch .* computed"):
        Encoder(bundle, verify=True)


def test_probes_that_are_not_finite_are_no_proof(golden: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(golden / "bundle-v1", tmp_path)
    arrays = load_file(bundle / PROBE_VECTORS_FILE)
    rewrite_file(bundle, PROBE_VECTORS_FILE, save(arrays | {"embeddings": arrays["embeddings"] * np.nan}))
    with pytest.raises(ParityError, match="not what torch"):
        Encoder(bundle, verify=True)
