"""Test which texts name a repository of the hub."""

from pathlib import PurePosixPath, PureWindowsPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whiten_runtime.errors import UsageError
from whiten_runtime.hub import Repository, is_repository_id, parse_repository


@pytest.mark.parametrize(
    ("text", "id", "revision"),
    [
        ("org/name", "org/name", None),
        ("hf://Org-1/name_2.v3", "Org-1/name_2.v3", None),
        *(
            (f"{scheme}org/name@{revision}", "org/name", revision)
            for revision in ("v1.0", "refs/pr/1", "user@work/x", "0" * 40, "branche-été", "...x", "a..b")
            for scheme in ("", "hf://")
        ),
    ],
)
def test_names_of_repositories(text: str, id: str, revision: str | None) -> None:
    assert parse_repository(text) == parse_repository(f"hf://{id}", revision) == Repository(id, revision)


def test_a_revision_beside_another_is_refused() -> None:
    with pytest.raises(UsageError, match="'v2'"):
        parse_repository("hf://org/name@v1", "v2")


NO_NAMES = (
    *("hf://", "hf://name", "hf://org/name/sub", "hf://org/name@", "hf://@v1", "name", "/org/name", "./name"),
    *("../name", "org/", "/name", "org/.name", "org/name.", "-org/name", "org/na--me", "org/na..me", "org/name.git"),
    *("a\\b/c", "org/name@", "C:/name", "org/na me", "org/name\n", "o/" + "n" * 95, ""),
)


@pytest.mark.parametrize("text", NO_NAMES)
def test_what_names_no_repository(text: str) -> None:
    with pytest.raises(UsageError, match="ORG/NAME"):
        parse_repository(text)


REVISIONS_REFUSED = (
    *("../x", "a/../x", "..", ".", "./x", "/x", "a//b", "a/", "/", "a\\b", "C:x", "a\nb", "a\0b", "\x7f", "\u2028"),
    "\ud800",
)


@pytest.mark.parametrize("revision", REVISIONS_REFUSED)
def test_what_is_no_revision(revision: str) -> None:
    for text, beside in (("org/name", revision), (f"hf://org/name@{revision}", None)):
        with pytest.raises(UsageError) as caught:
            parse_repository(text, beside)
        assert repr(revision) in str(caught.value)
        assert str(caught.value).isprintable()


@given(st.text(st.sampled_from("a./\\:\n@é"), max_size=8))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_revision_stays_below_the_folder_of_revisions(revision: str) -> None:
    try:
        parse_repository("org/name", revision)
    except UsageError:
        return
    for flavour in (PurePosixPath, PureWindowsPath):
        path = flavour("refs") / revision
        assert path.parts[0] == "refs"
        assert path.as_posix() == f"refs/{revision}"
        assert ".." not in path.parts


@given(st.text("aZ0._/-", min_size=1, max_size=12))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_ids_are_those_of_the_client(text: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(text)
        valid = "/" in text
    except HFValidationError:
        valid = False
    assert valid or not is_repository_id(text)
    parts = text.split("/")
    ordinary = all(part and part[0] not in ".-_" and part[-1] not in ".-_" for part in parts)
    assert is_repository_id(text) == valid or not ordinary
