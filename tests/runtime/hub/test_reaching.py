"""Test what is said where the hub does not answer: hosts and proxies here are real servers on this machine."""

import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.cli import refused
from support.hub import Hub

ID = "org/tiny"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
LOGIN = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"

Answering = Callable[[bytes, ssl.SSLContext | None], str]


@pytest.fixture
def serve() -> Iterator[Answering]:
    """Return a function that starts a server with one answer for all, or with none, and returns its host and port."""
    servers: list[socket.socket] = []

    def start(answer: bytes = b"", tls: ssl.SSLContext | None = None) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def accept() -> None:
            with suppress(OSError):
                while answer or tls:
                    connection, _ = server.accept()
                    with suppress(OSError), tls.wrap_socket(connection, True) if tls else connection as open_one:
                        open_one.recv(65536)
                        open_one.sendall(answer)

        threading.Thread(target=accept, daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def message(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that opens a bundle of a hub at an address, with proxies, and returns the one line of it."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _http

    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)

    def line(endpoint: str, seconds: float = 10, **variables: str) -> str:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", seconds)
        for forget in ("close_session", "reset_sessions"):  # the client reads variables when it is made
            getattr(_http, forget, lambda: None)()
        found = refused("info", ID, code=1)
        assert "secret" not in found
        return found

    return line


def test_nobody_answers(message: Callable[..., str]) -> None:
    line = message("http://127.0.0.1:9")
    assert all(named in line for named in ("127.0.0.1:9", "Connection refused", "HF_ENDPOINT"))


def test_a_hub_that_is_too_slow(message: Callable[..., str], serve: Answering) -> None:
    host = serve(b"", None)
    line = message(f"http://{host}", 0.2)
    assert all(named in line for named in (host, "0.2 s", "HF_HUB_ETAG_TIMEOUT"))


@pytest.mark.parametrize(("scheme", "variable"), [("https", "HTTPS_PROXY"), ("http", "ALL_PROXY")])
def test_a_proxy_that_is_not_there(message: Callable[..., str], scheme: str, variable: str) -> None:
    line = message(f"{scheme}://hub.example", **{variable: "http://me:secret@127.0.0.1:9"})
    assert all(named in line for named in ("proxy 127.0.0.1:9 before hub.example", f"check {variable}", "NO_PROXY"))


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_wants_a_log_in(message: Callable[..., str], serve: Answering, scheme: str) -> None:
    proxy, variable = serve(LOGIN, None), f"{scheme.upper()}_PROXY"
    line = message(f"{scheme}://hub.example", **{variable: f"http://me:secret@{proxy}"})
    assert all(named in line for named in (f"proxy {proxy} before hub.example", "(407)", f"set {variable}"))


def test_a_certificate_that_is_not_trusted(message: Callable[..., str], serve: Answering, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes a certificate, is not here")
    files = [str(tmp_path / name) for name in ("cert.pem", "key.pem")]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*made, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    host = serve(b"", context)
    assert re.search(f"certificate of {host}.*(SSL_CERT_FILE|REQUESTS_CA_BUNDLE)", message(f"https://{host}"))
