"""Test which licence of a source is taken over: only what its own files or the catalogue say."""

from dataclasses import replace
from pathlib import Path

import pytest

from whiten_export.sources.checkpoints.checkpoint import Checkpoint, stated_license
from whiten_models.catalogue import find

ENTRY = find("bert-base")


@pytest.mark.parametrize(
    ("content", "licence"),
    [
        ("---\nlicense: mit\n---\n# Model\n", "mit"),
        ("---\nlanguage: en\nlicense: Apache-2.0\n---\n", "apache-2.0"),
        ("---\nlicense: other\nlicense_name: own\n---\n", "other"),
        ("---\nlicense:\n- mit\n- gpl\n---\n", None),
        ("---\nlicense: 'all rights\n  reserved'\n---\n", None),
        ("# Model\nlicense: mit\n", None),
        ("---\nlicense: [mit\n---\n", None),
        ("---\n- license\n---\n", None),
        ("\udc80", None),
        ("", None),
    ],
)
def test_the_models_own_card_goes_before_the_catalogue(tmp_path: Path, content: str, licence: str | None) -> None:
    checkpoint = Checkpoint("bert-base", "bert-base", "transformers", tmp_path, ())
    assert stated_license(checkpoint) is None
    (tmp_path / "README.md").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert stated_license(checkpoint) == licence
    assert stated_license(replace(checkpoint, entry=ENTRY)) == (licence or "apache-2.0")
    assert stated_license(replace(checkpoint, kind="words")) is None
    assert stated_license(replace(checkpoint, adapter=tmp_path / "adapter")) is None


def test_the_licence_of_the_catalogue_is_spelled_as_on_the_hub(tmp_path: Path) -> None:
    assert ENTRY is not None
    for licence, spelled in (("see the checkpoint", None), ("LicenseRef-Gemma", "gemma"), ("MIT", "mit")):
        entry = replace(ENTRY, licence=licence)
        assert stated_license(Checkpoint("a", "a", "words", tmp_path, (), entry=entry)) == spelled
