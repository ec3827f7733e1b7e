import re

import pytest

from whiten_models import catalogue, find, near_matches


def test_every_entry_makes_sense() -> None:
    entries = catalogue()
    assert len({entry.name for entry in entries}) == len(entries) >= 5
    for entry in entries:
        assert re.fullmatch(r"[a-z0-9.-]+", entry.name)
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", entry.checkpoint)
        assert entry.recommended_layers
        assert all(0 <= layer <= entry.layers for layer in entry.recommended_layers)
        assert entry.width > 0
        assert entry.licence
        assert (entry.weights_sha256 is None) or re.fullmatch(r"[0-9a-f]{64}", entry.weights_sha256)
        assert (entry.revision is None) == (entry.weights_sha256 is None)


def test_names_are_unambiguous() -> None:
    spellings = [name.lower() for entry in catalogue() for name in (entry.name, entry.checkpoint, *entry.aliases)]
    assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize("name", ["minilm", "MiniLM", "all-minilm-l6-v2", "sentence-transformers/all-MiniLM-L6-v2"])
def test_find(name: str) -> None:
    entry = find(name)
    assert entry is not None
    assert entry.name == "minilm"


def test_near_matches() -> None:
    assert near_matches("distilbret")[0] == "distilbert"
    assert near_matches("qqqqqqqq") == []
    assert find("qqqqqqqq") is None
