"""Test evaluations of bundles that are named by a repository of the hub."""

import json
from pathlib import Path

import pytest

from support.cli import ok
from support.hub_server import connect, serving


def test_bundles_of_the_hub_are_evaluated_under_their_names(
    tiny_bundle: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {
        path.relative_to(tiny_bundle).as_posix(): path.read_bytes() for path in tiny_bundle.rglob("*") if path.is_file()
    }
    with serving({"org/tiny": content}) as hub:
        connect(monkeypatch, hub, tmp_path / "cache")
        result = ok("eval", "isotropy", "hf://org/tiny", tiny_bundle, "--input", corpus_file, "--json")
    first, second = json.loads(result.stdout)["bundles"]
    assert (first.pop("bundle"), second.pop("bundle")) == ("hf://org/tiny", str(tiny_bundle))
    assert first == second
