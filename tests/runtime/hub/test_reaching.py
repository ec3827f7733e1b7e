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
from whiten import Encoder, WhitenError
from whiten_runtime.hub import _why

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
        with pytest.raises(WhitenError) as caught:
            Encoder(ID)
        assert "\n" not in str(caught.value)
        return str(caught.value).partition("hub's cache, and ")[2].partition("; check the path, or copy the cache")[0]

    return line


def test_nobody_answers(message: Callable[..., str]) -> None:
    start = "the hub is out of reach: 127.0.0.1:9 does not answer ("
    line = message("http://127.0.0.1:9")
    assert line.startswith(start)
    assert "Connection refused" in line
    assert line.endswith("): check the network and HF_ENDPOINT")


def test_a_hub_that_is_too_slow(message: Callable[..., str], serve: Answering) -> None:
    host = serve(b"", None)
    wanted = f"the hub is out of reach: {host} has not answered in 0.2 s: set HF_HUB_ETAG_TIMEOUT to more seconds"
    assert message(f"http://{host}", 0.2) == wanted
    assert wanted in refused("info", ID, code=1)


def test_a_proxy_that_is_not_there(message: Callable[..., str]) -> None:
    for scheme, variable in (("https", "HTTPS_PROXY"), ("http", "ALL_PROXY")):
        line = message(f"{scheme}://hub.example", **{variable: "http://me:secret@127.0.0.1:9"})
        assert line.startswith("the hub is out of reach: the proxy 127.0.0.1:9 before hub.example does not work (")
        assert line.endswith(f"): check {variable}, or name hub.example in NO_PROXY")
        assert "secret" not in line


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_wants_a_log_in(message: Callable[..., str], serve: Answering, scheme: str) -> None:
    proxy, variable = serve(LOGIN, None), f"{scheme.upper()}_PROXY"
    assert message(f"{scheme}://hub.example", **{variable: f"http://me:secret@{proxy}"}) == (
        f"the hub is out of reach: the proxy {proxy} before hub.example wants a log-in (407): set {variable} to "
        f"http://USER:PASSWORD@{proxy}"
    )


def test_a_certificate_that_is_not_trusted(message: Callable[..., str], serve: Answering, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes a certificate, is not here")
    files = [str(tmp_path / name) for name in ("cert.pem", "key.pem")]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*made, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    host = serve(b"", context)
    line = message(f"https://{host}")
    assert line.startswith(f"the hub is out of reach: the certificate of {host} is not trusted (")
    assert re.search("set (SSL_CERT_FILE|REQUESTS_CA_BUNDLE) to a file with the certificates of your network$", line)


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("ProxyError", "Tunnel connection failed: 407 Proxy Authentication Required", r"wants a log-in \(407\)"),
        ("ProxyError", "Cannot connect to proxy.", "the proxy proxy:1 before hub.example does not work"),
        ("SSLError", "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "is not trusted"),
        ("ConnectTimeout", "timed out", "has not answered in 3 s"),
        ("ConnectionError", "connect to 10.0.0.1:407\nfailed", "does not work .connect to 10.0.0.1:407 failed"),
    ],
)
def test_errors_of_other_http_libraries(name: str, text: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of requests, which huggingface_hub before 1.0 uses, are called."""
    for variable in PROXIES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "proxy:1")
    line = _why(type(name, (Exception,), {})(text), "https://hub.example", 3)
    assert line is not None
    assert re.search(wanted, line)
