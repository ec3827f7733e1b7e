"""Test which licence of a source is taken over: only what its own files or the catalogue say."""

from dataclasses import replace
from pathlib import Path

import pytest

from whiten_export.sources.checkpoints.checkpoint import Checkpoint, license_of_card, license_of_entry, stated_license
from whiten_models.catalogue import find


@pytest.mark.parametrize(
    ("content", "licence"),
    [
        ("---\nlicense: mit\n---\n# Model\n", "mit"),
        ("---\nlanguage: en\nlicense: Apache-2.0\n---\n", "apache-2.0"),
        ("---\nlicense: other\nlicense_name: own\n---\n", "other"),
        ("---\nlicense:\n- mit\n- gpl\n---\n", None),
        ("---\nlicense: 'all rights\n  reserved'\n---\n", None),
        ("---\nlanguage: en\n---\n", None),
        ("# Model\nlicense: mit\n", None),
        ("---\nlicense: [mit\n---\n", None),
        ("---\n- license\n---\n", None),
        ("\udc80", None),
        ("", None),
    ],
)
def test_the_licence_of_a_card(tmp_path: Path, content: str, licence: str | None) -> None:
    (tmp_path / "README.md").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert license_of_card(tmp_path / "README.md") == licence
    assert license_of_card(tmp_path / "absent.md") is None


def test_the_licence_of_the_catalogue() -> None:
    entry = find("bert-base")
    assert entry is not None
    assert license_of_entry(entry) == "apache-2.0"
    assert license_of_entry(replace(entry, licence="see the checkpoint")) is None
    assert license_of_entry(replace(entry, licence="LicenseRef-Gemma")) == "gemma"
    assert license_of_entry(None) is None


def test_the_models_own_card_goes_before_the_catalogue(tmp_path: Path) -> None:
    checkpoint = Checkpoint("bert-base", "bert-base", "transformers", tmp_path, (), entry=find("bert-base"))
    assert stated_license(checkpoint) == "apache-2.0"
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    assert stated_license(checkpoint) == "mit"
    assert stated_license(replace(checkpoint, entry=None)) == "mit"
    assert stated_license(replace(checkpoint, entry=None, kind="words")) is None
    (tmp_path / "adapter").mkdir()
    assert stated_license(replace(checkpoint, entry=None, adapter=tmp_path / "adapter")) is None
