"""A signature is of one bundle: a new whitening of it has none."""

from pathlib import Path

from support.bundles import copy_bundle
from support.cli import ok


def test_a_refit_of_a_signed_bundle_is_not_signed(golden: Path, tmp_path: Path) -> None:
    signed = copy_bundle(golden / "bundle-v1", tmp_path)
    (signed / "model.sig").write_text("{}")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(f"Sentence number {number} of {number * 7} others." for number in range(400)))
    for target, options in (("new", ()), ("new", ("--force",))):
        out = tmp_path / target
        ok("refit", signed, "--corpus", corpus, "--whitening", "pca", "--out", out, *options)
        assert (out / "whiten.json").is_file()
        assert not (out / "model.sig").exists()
        (out / "model.sig").write_text("{}")
