"""Test evaluations of bundles that are named by a repository of the hub."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli import invoke, ok
from support.corpus import sentences
from support.hub_server import Hub, connect, serving
from whiten_runtime.commands.main import whiten
from whiten_whitening.codes.coder import Coder


@pytest.fixture
def hub(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve a hub with the repository org/tiny to this process, which has an empty cache."""
    content = {
        path.relative_to(tiny_bundle).as_posix(): path.read_bytes() for path in tiny_bundle.rglob("*") if path.is_file()
    }
    with serving({"org/tiny": content}) as served:
        connect(monkeypatch, served, tmp_path / "cache")
        yield served


@pytest.mark.usefixtures("hub")
def test_bundles_of_the_hub_are_evaluated_under_their_names(tiny_bundle: Path, corpus_file: Path) -> None:
    result = ok("eval", "isotropy", "hf://org/tiny", tiny_bundle, "--input", corpus_file, "--json")
    first, second = json.loads(result.stdout)["bundles"]
    assert (first.pop("bundle"), second.pop("bundle")) == ("hf://org/tiny", str(tiny_bundle))
    assert first == second


def test_texts_are_compared_with_the_corpus_of_a_bundle_of_the_hub(hub: Hub, tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(sentences(400)) + "\n")
    here, there, cached = (
        invoke(whiten, "drift", bundle, "--input", tmp_path / "texts.txt", "--json")
        for bundle in (tiny_bundle, "org/tiny", "hf://org/tiny@main")
    )
    assert (there.exit_code, there.stdout, there.stderr) == (here.exit_code, here.stdout, here.stderr)
    assert cached.stdout == here.stdout


def test_the_coder_of_a_bundle_of_the_hub(hub: Hub, tiny_bundle: Path) -> None:
    assert Coder.of("hf://org/tiny").id == Coder.of(tiny_bundle).id
