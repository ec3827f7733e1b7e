"""What cannot name a bundle is refused in one line, wherever a bundle is opened."""

from pathlib import Path

import pytest

from support.cli import refused
from whiten import BundleError, Coder, Encoder, UsageError, VectorWhitener, Whitening

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
