"""Values of options, as texts and as values of TOML."""

import pytest

from whiten_serving.settings.kinds import Kind, choice, flag, origin, seconds, size, text, whole


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (whole(0, 65535), "8080", 8080),
        (whole(0, 65535), 0, 0),
        (seconds(), "500ms", 0.5),
        (seconds(), "2m", 120.0),
        (seconds(), "168h", 604_800.0),
        (seconds(), " 1.5 s", 1.5),
        (seconds(), 3, 3.0),
        (seconds(), 2.5, 2.5),
        (size(), "32MB", 32_000_000),
        (size(), "16MiB", 16 * 2**20),
        (size(), "1.5kb", 1500),
        (size(), 7, 7),
        (flag(), "on", True),
        (flag(), "False", False),
        (flag(), True, True),
        (choice("a", "b"), "b", "b"),
        (text(), "anything", "anything"),
        (text(several=True), "a, b,,c", ("a", "b", "c")),
        (text(several=True), ["a", "b,c"], ("a", "b,c")),
        (text(several=True), ("a",), ("a",)),
        (text(several=True), [], ()),
        (origin(), "https://a.example,http://[::1]:80", ("https://a.example", "http://[::1]:80")),
        (origin(), ("*", "null"), ("*", "null")),
    ],
)
def test_values(kind: Kind, raw: object, value: object) -> None:
    found = kind.value(raw)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "raw", "wanted"),
    [
        (whole(0, 65535), "65536", "a whole number from 0 to 65535"),
        (whole(1), "0", "a whole number of at least 1"),
        (whole(1), "2.5", "a whole number of at least 1"),
        (whole(1), 2.5, "a whole number of at least 1"),
        (whole(1), True, "a whole number of at least 1"),
        (seconds(0.001), "0", "at least 0.001 s"),
        (seconds(), "5 weeks", "500ms"),
        (seconds(), "-1", "seconds"),
        (seconds(), "169h", "at most 604800 s"),
        (seconds(), 1e18, "at most 604800 s"),
        (seconds(), "nan", "seconds"),
        (seconds(), "inf", "seconds"),
        (seconds(), float("inf"), "seconds"),
        (seconds(), True, "seconds"),
        (size(), "32 potatoes", "32MB"),
        (size(), 2.5, "32MB"),
        (flag(), "maybe", "true or false"),
        (flag(), 1, "true or false"),
        (choice("a", "b"), "c", "one of a, b"),
        (text(), " ", "not empty"),
        (text(), 8080, "a text"),
        (text(several=True), ["a", 1], "a text"),
        (text(several=True), " , ", "a text"),
        (size(), "9" * 400, "32MB"),
        (whole(1), "9" * 5000, "a whole number of at least 1"),
        (origin(), ("https://a.example,https://b.example",), "repeat the option"),
        (origin(), ("https://a.example/",), "without a path"),
        (origin(), ("https://A.example",), "small letters"),
        (origin(), ("a.example",), "https://a.example"),
    ],
)
def test_refusals(kind: Kind, raw: object, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        kind.value(raw)
