"""Keys and CORS of `whiten serve`."""

from pathlib import Path

import pytest

from support.server import RunningServer
from whiten_runtime.errors import DataError, UsageError
from whiten_serving.server.keys import read_keys


def test_keys_of_a_file_and_of_the_environment(tiny_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# comment\n\nfrom-file\n", "utf-8")
    file.chmod(0o600)
    with RunningServer(tiny_bundle, "--api-key-file", file, variables={"WHITEN_API_KEY": "one, two"}) as server:
        for key in ("from-file", "one", "two"):
            assert server.embed("a", authorization=f"Bearer {key}").status == 200
        assert server.embed("a", **{"x-api-key": "one"}).status == 200
        assert server.embed("a", **{"api-key": "one"}).status == 200
        for key in ("from-fil", "from-file2", "", "# comment"):
            answer = server.embed("a", authorization=f"Bearer {key}")
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert server.call("GET", "/ready").status == 200
        assert not any("from-file" in line for line in server.lines)
        assert server.ready["keys"] == 3


def test_a_key_file_that_everybody_can_read_is_warned_of(tiny_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("secret\n", "utf-8")
    file.chmod(0o644)
    with RunningServer(tiny_bundle, "--api-key-file", file) as server:
        assert "everybody on this machine can read the keys" in server.message(str(file))["message"]


def test_keys_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\n# nothing\n", "utf-8")
    with pytest.raises(DataError, match="holds no key"):
        read_keys(str(file), {}, print)
    file.write_text("two words\n", "utf-8")
    with pytest.raises(UsageError, match="key 1 of 1"):
        read_keys(str(file), {}, print)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not a text"):
        read_keys(str(file), {}, print)
    for blank in ("", " , ", ","):
        with pytest.raises(UsageError, match="WHITEN_API_KEY holds no key"):
            read_keys(None, {"WHITEN_API_KEY": blank}, print)
    assert read_keys(None, {}, print) == ()
    assert read_keys(None, {"WHITEN_API_KEY": "a,a, b"}, print) == ("a", "b")


def test_cors(tiny_bundle: Path) -> None:
    with RunningServer(
        tiny_bundle, "--cors-origin", "https://a.example", "--cors-origin", "https://b.example"
    ) as server:
        for origin, allowed in (("https://a.example", True), ("https://b.example", True), ("https://c.example", False)):
            answer = server.call("GET", "/v1/models", headers={"origin": origin})
            assert (answer.headers.get("access-control-allow-origin") == origin) is allowed
