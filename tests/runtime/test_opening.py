"""Opening a bundle: what cannot name one, and the parity proof of verify=True."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from support.bundles import copy_bundle, edit_manifest, rewrite_file
from support.cli import refused
from whiten import BundleError, Coder, Encoder, ParityError, UsageError, VectorWhitener, Whitening
from whiten_runtime.bundle.bundle import PROBE_VECTORS_FILE

OPENERS = (Encoder, VectorWhitener, Coder.of, Coder.load, Whitening.load)


@pytest.mark.parametrize("opener", OPENERS, ids=lambda one: one.__qualname__)
@pytest.mark.parametrize("value", [None, 3, b"x", ["a"], 1.5, "", "a\0b"], ids=repr)
def test_what_is_no_path(opener: type, value: object, golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden / "bundle-v1")  # an empty path would be this bundle
    with pytest.raises(UsageError, match=r"is (NoneType None|int 3|bytes b'x'|list \['a'\]|float 1.5|an empty|'a)"):
        opener(value)


def test_an_empty_text_on_the_command_line(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden / "bundle-v1")
    assert "bundle is an empty text" in refused("embed", "", "a text")


def test_messages_name_public_classes(golden: Path) -> None:
    with pytest.raises(BundleError, match=r"open it with whiten\.VectorWhitener$"):
        Encoder(golden / "bundle-v1-vectors")
    with pytest.raises(BundleError, match=r"open it with whiten\.Encoder$"):
        VectorWhitener(golden / "bundle-v1")


KINDS = {"bundle-v1": Encoder, "bundle-v1-int8": Encoder, "bundle-v1-vectors": VectorWhitener}


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
    packed = pickle.dumps(Encoder(bundle, verify=True))
    turn_probes(bundle)
    with pytest.raises(ParityError):
        pickle.loads(packed)


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
