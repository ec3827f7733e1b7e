"""TLS: certificates that are replaced, and connections that never finish the handshake."""

import resource
import shutil
import signal
import socket
import ssl
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from support.server import Answer, RunningServer, parsed, received, request, run, until

pytestmark = pytest.mark.slow

LIVE = request("GET", "/live", headers={"connection": "close"})


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_certificate(cert, key)
    return cert, key


def make_certificate(cert: Path, key: Path) -> None:
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    try:
        subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl, to make a certificate")


def over_tls(server: RunningServer, cert: Path, data: bytes) -> tuple[Answer, bytes]:
    """Return an answer and the certificate that was shown."""
    context = ssl.create_default_context(cafile=str(cert))
    plain = socket.create_connection(server.address, 60)
    with context.wrap_socket(plain, server_hostname="localhost") as sock:
        sock.sendall(data)
        shown = sock.getpeercert(binary_form=True)
        assert shown is not None
        return Answer.of(received(sock)), shown


def test_tls(tiny_bundle: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    once = request("POST", "/v1/embeddings", {"input": "a"}, {"connection": "close"})
    with RunningServer(tiny_bundle, "--tls-cert", cert, "--tls-key", key, "--drain", 0) as server:
        answer, first = over_tls(server, cert, once)
        assert (answer.status, len(answer.vector())) == (200, 32)
        with server.connect() as plain:
            plain.sendall(once)
            assert not received(plain).startswith(b"HTTP/1.1 200")
        make_certificate(cert, key)
        server.signal(signal.SIGHUP)
        server.message("bundle-v1: unchanged")
        answer, second = over_tls(server, cert, once)
        assert answer.status == 200
        assert first != second
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


def test_a_key_of_another_certificate(tiny_bundle: Path, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    make_certificate(tmp_path / "other.pem", tmp_path / "other-key.pem")
    code, said = run(tiny_bundle, "--tls-cert", certificate[0], "--tls-key", tmp_path / "other-key.pem")
    assert code == 1
    assert "not a certificate and its key" in said
    assert said.count("\n") == 1


def test_a_certificate_without_its_key_leaves_the_old_one(
    tiny_bundle: Path, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """A renewal replaces two files, and SIGHUP may come between."""
    cert, key = certificate
    old = shutil.copy(cert, tmp_path / "old.pem")
    make_certificate(tmp_path / "new.pem", tmp_path / "new-key.pem")
    with RunningServer(tiny_bundle, "--tls-cert", cert, "--tls-key", key) as server:
        shutil.copy(tmp_path / "new.pem", cert)
        server.signal(signal.SIGHUP)
        assert "not a certificate and its key" in server.message("not reloaded: ")["message"]
        server.message("bundle-v1: unchanged")
        for _ in range(2):
            assert over_tls(server, old, LIVE)[0].status == 200
        seen = len(server.lines)
        shutil.copy(tmp_path / "new-key.pem", key)
        server.signal(signal.SIGHUP)
        server.message("bundle-v1: unchanged", after=seen)
        assert over_tls(server, cert, LIVE)[0].status == 200


def sockets(server: RunningServer) -> int:
    """Return the number of sockets that the process has open now."""
    count = 0
    for place in list(Path(f"/proc/{server.process.pid}/fd").iterdir()):
        with suppress(FileNotFoundError):  # closed meanwhile
            count += place.readlink().name.startswith("socket:")
    return count


def test_connections_without_a_handshake_are_counted_and_timed(
    tiny_bundle: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    bounds = ("--max-connections", 5, "--header-timeout", "2s", "--drain", 0)
    with RunningServer(tiny_bundle, "--tls-cert", cert, "--tls-key", key, *bounds) as server:
        before = sockets(server)
        silent = [server.connect() for _ in range(100)]
        until(lambda: sockets(server) > before)
        time.sleep(0.5)
        assert sockets(server) <= before + 30, "5, and a few that are told that they are too many"
        until(lambda: sockets(server) <= before, 20)
        assert over_tls(server, cert, LIVE)[0].status == 200
        for sock in silent:
            sock.close()
        lines = [parsed(line) for line in server.lines]
        assert sum((line.get("status"), line.get("error")) == (503, "connections") for line in lines) > 50
        assert not any(line.get("level") == "error" or "Traceback" in line.get("message", "") for line in lines)


def test_file_descriptors_are_used_up_before_the_handshake(tiny_bundle: Path, certificate: tuple[Path, Path]) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    cert, key = certificate
    with RunningServer(
        tiny_bundle, "--tls-cert", cert, "--tls-key", key, "--header-timeout", "2s", before=few
    ) as server:
        silent = [server.connect() for _ in range(300)]
        begin = time.monotonic()
        until(lambda: answered(server, cert), 20)
        assert time.monotonic() - begin < 20, "although all of them are still there"
        for sock in silent:
            sock.close()


def answered(server: RunningServer, cert: Path) -> bool:
    try:
        return over_tls(server, cert, LIVE)[0].status == 200
    except (OSError, IndexError, ValueError):
        return False


def test_more_connections_than_allowed_are_told_so_over_tls(tiny_bundle: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with RunningServer(tiny_bundle, "--tls-cert", cert, "--tls-key", key, "--max-connections", 5) as server:
        context = ssl.create_default_context(cafile=str(cert))
        idle = [context.wrap_socket(server.connect(), server_hostname="localhost") for _ in range(5)]
        answer, _ = over_tls(server, cert, LIVE)
        assert (answer.status, answer.json()["error"]["code"]) == (503, "connections")
        idle[0].sendall(LIVE)
        assert received(idle[0]).startswith(b"HTTP/1.1 200")
        for sock in idle:
            sock.close()


def test_handshakes_that_fail_are_forgotten(tiny_bundle: Path, certificate: tuple[Path, Path]) -> None:
    """Clients that speak no TLS, that go at once, or that trust another certificate."""
    cert, key = certificate
    with RunningServer(tiny_bundle, "--tls-cert", cert, "--tls-key", key, "--max-connections", 3) as server:
        for _ in range(10):
            with server.connect() as plain:
                plain.sendall(LIVE)
                received(plain)
            server.connect().close()
            with pytest.raises(ssl.SSLError), server.connect() as distrustful:
                ssl.create_default_context().wrap_socket(distrustful, server_hostname="localhost")
        until(lambda: answered(server, cert))
        assert not any("Traceback" in line or "error" in line for line in server.lines)


def test_a_drain_waits_for_handshakes(tiny_bundle: Path, certificate: tuple[Path, Path]) -> None:
    """A connection that was accepted is served, if it agrees on TLS in time."""
    cert, key = certificate
    context = ssl.create_default_context(cafile=str(cert))
    with RunningServer(tiny_bundle, "--tls-cert", cert, "--tls-key", key, "--drain", 0) as server:
        with server.connect() as slow:
            time.sleep(0.5)
            server.signal(signal.SIGTERM)
            server.message("draining")
            time.sleep(1.5)
            with context.wrap_socket(slow, server_hostname="localhost") as sock:
                sock.sendall(request("POST", "/v1/embeddings", {"input": "a"}))
                assert received(sock).startswith(b"HTTP/1.1 200")
        assert server.wait() == 0
