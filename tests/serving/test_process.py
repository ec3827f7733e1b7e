"""The process of `whiten serve`: where it listens, what it says, how it drains and ends."""

import errno
import grp
import json
import os
import pty
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import httpx
import numpy as np
import pytest

from support.bundles import copy_bundle, rewrite_file
from support.server import COMMAND, ROOT, WATCH_AFTER, Load, RunningServer, environment, run, until
from whiten import Encoder, UsageError, WhitenError
from whiten_serving import sockets
from whiten_serving.settings import Settings

TEXT = "A man is playing a guitar."
KEY = {"x-api-key": "one"}


def request(method: str, path: str, body: object) -> bytes:
    """Return the bytes of a request."""
    data = json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


def received(sock: socket.socket) -> bytes:
    """Return all that arrives until the other side closes."""
    return b"".join(iter(lambda: sock.recv(65536), b""))


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_it_answers_reloads_drains_and_ends(golden: Path, tmp_path: Path, tiny: Encoder) -> None:
    place = copy_bundle(golden / "bundle-v1", tmp_path)
    keys = tmp_path / "keys"
    keys.write_text("# comment\n\nfrom-file\n", "utf-8")
    keys.chmod(0o644)
    config = tmp_path / "serve.toml"
    config.write_text('cors-origins = ["https://a.example"]\n', "utf-8")
    arguments = (f"tiny={place}", "--api-key-file", keys, "--drain", "4s", "--config", config)
    with RunningServer(*arguments, variables={"WHITEN_API_KEY": "one, two"}) as server:
        assert "everybody on this machine can read the keys" in server.lines[0]
        assert server.ready["keys"] == 3
        for key in ("from-file", "one", "two"):
            answer = server.embed(TEXT, authorization=f"Bearer {key}", origin="https://a.example")
            found = answer.json()["data"][0]["embedding"]
            assert np.allclose(found, tiny.encode(TEXT), atol=1e-6 * np.linalg.norm(tiny.encode(TEXT)))
            assert answer.headers["access-control-allow-origin"] == "https://a.example"
        assert server.embed("a", authorization="Bearer from-fil").status_code == 401
        assert server.call("GET", "/ready").status_code == 200
        assert 'whiten_parity_cosine{model="tiny"} 0.99999' in server.call("GET", "/metrics", headers=KEY).text
        until(
            lambda: "whiten_batch_texts_sum 3.0" in server.call("GET", "/metrics", headers=KEY).text
        )  # told after the answer
        server.signal(signal.SIGHUP)
        server.message("tiny: unchanged")
        assert server.embed("a", authorization="Bearer from-file").status_code == 200
        shutil.copytree(golden / "bundle-v1-int8", tmp_path / "other")
        place.rename(tmp_path / "before")
        (tmp_path / "other").rename(place)
        keys.write_text("alice other\n", "utf-8")
        server.signal(signal.SIGHUP)
        server.message("tiny: reloaded")
        assert server.embed("a", authorization="Bearer from-file").status_code == 401
        assert server.embed("a", authorization="Bearer other").status_code == 200
        until(lambda: 'client="alice"' in server.call("GET", "/metrics", headers=KEY).text)
        keys.write_text("# none\n", "utf-8")
        server.signal(signal.SIGHUP)
        server.message("keys: not reloaded, the old one goes on")
        assert server.embed("a", authorization="Bearer other").status_code == 200
        assert server.embed("a").status_code == 401
        assert server.call("GET", "/info", headers={"api-key": "one"}).json()["model_dtype"] == "int8"
        server.signal(signal.SIGTERM)
        server.message("draining")
        assert server.call("GET", "/ready").status_code == 503
        last = server.embed("a", authorization="Bearer one")
        assert (last.status_code, last.headers["connection"]) == (200, "close")
        assert server.wait() == 0
        assert json.loads(server.lines[-1])["message"] == "stopped"
        assert any(json.loads(line).get("route") == "/v1/embeddings" for line in server.lines[1:])
        assert TEXT not in "\n".join(server.lines)


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        (["nowhere/at/all"], 1, "nowhere/at/all"),
        (["tests/data/bundle-v1-vectors"], 1, "tests/data/bundle-v1-vectors"),
        (["nowhere", "--tls", "README.md"], 1, "README.md"),
        (["a=nowhere", "a/embed=nowhere"], 2, "/models/a/embed"),
        (["tests/data/bundle-v1", "--listen", "a..b:80"], 1, "a..b:80"),
        (["tests/data/bundle-v1", "--listen", "fd:99"], 1, "fd:99"),
        (["tests/data/bundle-v1", "--listen", "unix:/none/s"], 1, "unix:/none/s"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], code: int, name: str) -> None:
    found, said = run(*arguments, *([] if "--listen" in arguments else ["--listen", "0"]))
    assert (found, is_one_line(said), name in said) == (code, True, True), said


def is_one_line(said: str) -> bool:
    return said.count("\n") == 1 and said.startswith("error: ")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--listen",), ("--listen", "0", "--metrics-listen")])
def test_a_port_that_is_in_use(tiny_bundle: Path, words: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, said = run(tiny_bundle, *words, port)
    assert (code, is_one_line(said)) == (1, True)
    assert f"127.0.0.1:{port}" in said


@pytest.mark.parametrize(
    ("listen", "bound"),
    [
        ("127.0.0.1:0", "127.0.0.1"),
        ("0", "127.0.0.1"),
        ("localhost:0", "127.0.0.1"),
        ("0.0.0.0:0", "0.0.0.0"),
        pytest.param("[::1]:0", "[::1]", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")),
    ],
)
def test_one_address_is_bound(listen: str, bound: str) -> None:
    with sockets.open_socket(listen, Settings()) as sock:
        assert sockets.show(sock.getsockname()).rpartition(":")[0] == bound
        with socket.socket(sock.family) as client:
            assert client.connect_ex(sock.getsockname()[:2]) == errno.ECONNREFUSED  # it does not listen yet
        sockets.listen(sock)
        with socket.socket(sock.family) as client:
            client.connect(sock.getsockname())


@pytest.mark.parametrize(
    ("listen", "place", "hosts"),
    [
        ("0", "Own.example:0", {"own.example", "other.example"}),
        ("0", "fd:3", {"other.example"}),
        ("0.0.0.0:0", "0.0.0.0:0", None),
    ],
)
def test_names_by_which_a_server_may_be_asked(listen: str, place: str, hosts: set[str] | None) -> None:
    settings = Settings(hosts=("Other.example",))
    with sockets.open_socket(listen, settings) as sock:
        assert sockets.hosts_of(sock, place, settings) == hosts


@pytest.mark.slow
def test_a_unix_socket(tiny_bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "s"
    with RunningServer(tiny_bundle, "--listen", f"unix:{place}") as server:
        server.signal(signal.SIGKILL)
        server.wait()
    assert place.exists()
    with RunningServer(tiny_bundle, "--listen", f"unix:{place}", "--drain", 0) as server:
        assert server.embed(TEXT).status_code == 200
        assert stat.S_IMODE(place.stat().st_mode) == 0o660
        code, said = run(tiny_bundle, "--listen", f"unix:{place}")
        assert (code, is_one_line(said), str(place) in said) == (1, True, True)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    assert not place.exists()
    place.write_text("keep me", "utf-8")
    code, said = run(tiny_bundle, "--listen", f"unix:{place}")
    assert (code, is_one_line(said)) == (1, True)
    assert place.read_text("utf-8") == "keep me"


@pytest.mark.slow
def test_a_socket_that_systemd_opened_and_its_notices(tiny_bundle: Path, tmp_path: Path) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    number = listening.fileno()
    with listening, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(60)
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with RunningServer(
            tiny_bundle, "--drain", 0, "--listen", f"fd:{number}", fds=(number,), variables=variables
        ) as server:
            assert server.address == listening.getsockname()
            assert server.embed(TEXT).status_code == 200
            assert supervisor.recv(1000).startswith(b"READY=1\nSTATUS=serving on 127.0.0.1:")
            server.signal(signal.SIGHUP)
            assert supervisor.recv(1000).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
            assert supervisor.recv(1000).startswith(b"READY=1")
            server.signal(signal.SIGTERM)
            assert supervisor.recv(1000).startswith(b"STOPPING=1")
            assert server.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("order", [("key", "certificate"), ("certificate", "key")])
def test_tls_by_one_file(tiny_bundle: Path, tmp_path: Path, order: tuple[str, str]) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not here")
    key, certificate, both = tmp_path / "key", tmp_path / "certificate", tmp_path / "both.pem"
    command = [
        openssl,
        *["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"],
    ]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    both.write_bytes(b"".join((tmp_path / name).read_bytes() for name in order))
    with RunningServer(tiny_bundle, "--tls", both) as server:
        trusted = ssl.create_default_context(cafile=certificate)
        url = f"https://127.0.0.1:{server.address[1]}/ready"
        get = partial(httpx.get, url, timeout=WATCH_AFTER)
        assert get(verify=trusted).status_code == 200
        subprocess.run(command, check=True, capture_output=True)  # renewed
        whole = b"".join((tmp_path / name).read_bytes() for name in order)
        locked = tmp_path / "locked"
        encrypt = [openssl, "pkey", "-aes256", "-passout", "pass:secret", "-in", key, "-out", locked]
        subprocess.run(encrypt, check=True, capture_output=True)
        with_locked = locked.read_bytes() + certificate.read_bytes()
        for content in (whole[:300], with_locked):
            seen = len(server.lines)
            both.write_bytes(content)
            server.signal(signal.SIGHUP)
            server.message("certificate: not reloaded", after=seen)
            assert get(verify=trusted).status_code == 200  # by the old one
        both.write_bytes(whole)
        server.signal(signal.SIGHUP)
        server.message("certificate: reloaded")
        trusted = ssl.create_default_context(cafile=certificate)
        assert get(verify=trusted).status_code == 200
    both.write_bytes(with_locked)
    for path in (certificate, both):
        code, said = run(tiny_bundle, "--tls", path)
        assert (code, is_one_line(said), str(path) in said) == (1, True, True), said


@pytest.mark.slow
def test_a_bundle_that_this_machine_does_not_compute(golden: Path, tmp_path: Path) -> None:
    """The probes of another bundle stand for a machine that computes something else."""
    from safetensors.numpy import load_file, save

    bundle = copy_bundle(golden / "bundle-v1", tmp_path)
    probes = load_file(bundle / "probes.safetensors")
    rewrite_file(bundle, "probes.safetensors", save({name: value[::-1].copy() for name, value in probes.items()}))
    code, said = run(bundle, "--listen", "0")
    assert (code, is_one_line(said), "--no-verify" in said) == (1, True, True)
    with RunningServer(bundle, "--no-verify") as server:
        assert server.embed(TEXT).status_code == 200


@pytest.mark.slow
def test_missing_packages_are_named(tiny_bundle: Path, tmp_path: Path) -> None:
    text = "raise ModuleNotFoundError('No module named uvicorn', name='uvicorn')"
    (tmp_path / "uvicorn.py").write_text(text, "utf-8")
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    code, said = run(tiny_bundle, variables={"PYTHONPATH": path})
    assert (code, is_one_line(said), "uvicorn" in said) == (1, True, True)


@pytest.mark.slow
def test_a_second_signal_ends_at_once(tiny_bundle: Path) -> None:
    with RunningServer(tiny_bundle, "--drain", "10m") as server:
        server.signal(signal.SIGTERM)
        server.message("draining")
        server.signal(signal.SIGINT)
        assert server.wait() == 128 + signal.SIGINT


@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_ctrl_c_on_a_terminal_does_not_drain(tiny_bundle: Path, busy: bool) -> None:
    process, ours = on_terminal(tiny_bundle, "--log", "json")
    try:
        with os.fdopen(ours, "rb", buffering=0) as screen, ExitStack() as stack:
            ready = read_ready(screen)
            if busy:
                host, port = ready["address"].split(":")
                client = stack.enter_context(socket.create_connection((host, int(port))))
                client.sendall(request("POST", "/v1/embeddings", {"input": "a"})[:-5])
                wait_for_request(f"http://{host}:{port}")
            os.write(ours, b"\x03")
            assert process.wait(10) == 0  # the drain and the grace take 35 s
    finally:
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("is_ready", "code"), [(False, 128 + signal.SIGHUP), (True, 0)])
def test_it_ends_when_its_terminal_is_gone(tiny_bundle: Path, is_ready: bool, code: int) -> None:
    process, ours = on_terminal(tiny_bundle, "--log", "json", "--drain", "0")
    try:
        with os.fdopen(ours, "rb", buffering=0) as screen:
            if is_ready:
                read_ready(screen)
            else:
                until(lambda: catches_hang_ups(process.pid))
        assert process.wait(60) == code
    finally:
        process.kill()


def on_terminal(*arguments: object) -> tuple[subprocess.Popen[bytes], int]:
    """Return a server on a terminal of its own, and the other end of the terminal."""
    ours, terminal = pty.openpty()
    words = [sys.executable, "-c", TERMINAL, *map(str, arguments), "--listen", "0"]
    process = subprocess.Popen(words, stdin=terminal, stderr=terminal, env=environment(), cwd=ROOT)
    os.close(terminal)
    return process, ours


def read_ready(screen: IO[bytes]) -> dict[str, Any]:
    """Return the line of the log that says that the server is ready."""
    said = b""
    while not (lines := [line for line in said.splitlines(True) if b'"ready"' in line and line.endswith(b"\n")]):
        said += screen.read(4096)
    return json.loads(lines[0])


TERMINAL = "import fcntl, os, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); " + COMMAND
"""The command, in a session of its own, whose terminal is that of its input."""


def wait_for_request(url: str) -> None:
    until(lambda: "whiten_in_flight_requests 1.0" in httpx.get(f"{url}/metrics", timeout=WATCH_AFTER).text)


@pytest.mark.slow
def test_metrics_and_probes_at_an_address_of_their_own(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("acme key-1\n", "utf-8")
    words = ("--api-key-file", tmp_path / "keys", "--metrics-listen", "0", "--drain", "2s")
    with RunningServer(f"tiny={tiny_bundle}", *words) as server:
        url = f"http://{server.ready['metrics']}"
        assert server.embed("a", **{"x-api-key": "key-1"}).status_code == 200
        with httpx.Client(base_url=url, timeout=WATCH_AFTER) as probe:
            until(lambda: 'client="acme"' in probe.get("/metrics").text)
            assert [probe.get(path).status_code for path in ("/live", "/ready")] == [200, 200]
            assert probe.get("/metrics", headers={"host": "evil.example"}).status_code == 421
            for path in ("/", "/info", "/v1/models", "/openapi.json", "/health", "/models/tiny/info"):
                assert probe.get(path).status_code == 404
            assert probe.post("/v1/embeddings", json={"input": "a"}).status_code == 404
            assert server.call("GET", "/ready").status_code == 200
            server.signal(signal.SIGTERM)
            until(lambda: probe.get("/ready").status_code == 503)
        assert server.wait() == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/live", timeout=WATCH_AFTER)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such limit")
@pytest.mark.parametrize("stalls", [True, False])
def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch, stalls: bool) -> None:
    monkeypatch.setattr(sockets, "STALLED", 2000)
    with sockets.open_socket("0", Settings()) as listener:
        sockets.listen(listener)
        with socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as server:
            sent = threading.Thread(target=send_much, args=(server, errors := []))
            sent.start()
            while not stalls and client.recv(1 << 20):
                pass
            sent.join(60)
    assert [error.errno for error in errors] == [errno.ETIMEDOUT] * stalls


def send_much(sock: socket.socket, errors: list[OSError]) -> None:
    try:
        sock.sendall(bytes(100_000_000))
        sock.shutdown(socket.SHUT_WR)
    except OSError as error:
        errors.append(error)


@pytest.mark.slow
def test_nothing_is_lost_if_clients_leave_during_the_drain(tiny_bundle: Path) -> None:
    """So does a balancer that asks for /ready: until it knows, requests are answered, on new connections too."""
    with RunningServer(tiny_bundle, "--drain", "10s", "--log", "off") as server:
        load = Load(server.address, 24, {"input": ["Sentence that is not long."]})
        until(lambda: len(load.answers) > 24)
        server.signal(signal.SIGTERM)
        until(lambda: server.call("GET", "/ready").status_code == 503)
        answered = len(load.answers)
        until(lambda: len(load.answers) > answered + 100)
        load.stop()
        assert server.wait() == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(server.address, 60)
    assert (load.lost, load.refused) == ([], 0)
    assert {answer.status_code for answer in load.answers} == {200}


@pytest.mark.slow
def test_requests_that_run_when_the_drain_ends_are_answered_and_the_grace_ends_others(tiny_bundle: Path) -> None:
    whole = request("POST", "/v1/embeddings", {"input": "a"})
    with RunningServer(tiny_bundle, "--drain", 0, "--grace", "5s") as server:
        connect = partial(socket.create_connection, server.address, 60)

        def is_refused() -> bool:
            try:
                connect().close()
            except ConnectionRefusedError:
                return True
            return False

        with connect() as slow, connect() as stuck:
            slow.sendall(whole[:-5])
            stuck.sendall(whole[:-5])
            until(lambda: "whiten_in_flight_requests 2.0" in server.call("GET", "/metrics").text)
            begin = time.monotonic()
            server.signal(signal.SIGTERM)
            until(is_refused)
            slow.sendall(whole[-5:])
            assert received(slow).startswith(b"HTTP/1.1 200")
            assert server.wait() == 0
        assert time.monotonic() - begin < 30  # that of the default
        assert is_refused()
    assert not any("Traceback" in line for line in server.lines)


@pytest.mark.slow
def test_a_hang_up_before_it_is_ready_waits_for_that(tiny_bundle: Path) -> None:
    server = RunningServer(tiny_bundle, "--drain", 0)
    until(lambda: catches_hang_ups(server.process.pid))
    server.signal(signal.SIGHUP)
    with server:
        server.message(f"{tiny_bundle.name}: unchanged")
        assert server.embed(TEXT).status_code == 200


def catches_hang_ups(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("no /proc here")
    (caught,) = [line for line in status.read_text("ascii").splitlines() if line.startswith("SigCgt")]
    return bool(int(caught.split()[1], 16) & 1 << (signal.SIGHUP - 1))


@pytest.mark.slow
def test_stderr_may_be_closed(tiny_bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "s"
    words = [sys.executable, "-c", COMMAND, str(tiny_bundle), "--listen", f"unix:{place}", "--drain", "0"]
    process = subprocess.Popen(["sh", "-c", 'exec "$@" 2>&-', "sh", *words], env=environment(), cwd=ROOT)
    try:
        transport = httpx.HTTPTransport(uds=str(place))
        until(lambda: place.exists() and process.poll() is None)
        with httpx.Client(transport=transport, base_url="http://test", timeout=WATCH_AFTER) as client:
            until(lambda: answers(client))
            assert client.post("/v1/embeddings", json={"input": TEXT}).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()


@pytest.mark.slow
def test_sigterm_right_after_the_first_answer_ends_with_0(tiny_bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "s"
    server = RunningServer(tiny_bundle, "--listen", f"unix:{place}", "--drain", 0)
    transport = httpx.HTTPTransport(uds=str(place))
    try:
        with httpx.Client(transport=transport, base_url="http://test", timeout=WATCH_AFTER) as client:
            while not answers(client):  # without a pause: what is wrong for 10 ms is seen only so
                assert server.process.poll() is None
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    finally:
        server.process.kill()


def answers(client: httpx.Client) -> bool:
    with suppress(httpx.ConnectError):
        return client.get("/ready").status_code == 200
    return False


@pytest.mark.slow
def test_the_folder_of_others_metrics_changes_nothing(tiny_bundle: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with RunningServer(tiny_bundle, variables={"PROMETHEUS_MULTIPROC_DIR": str(folder)}) as server:
            assert server.embed(TEXT).status_code == 200
            assert 'status="200"} 1.0' in server.call("GET", "/metrics").text
    assert list(tmp_path.iterdir()) == []


def test_a_socket_has_the_mode_and_group_that_are_asked_for(tmp_path: Path) -> None:
    place, group = tmp_path / "s", grp.getgrgid(os.getgid()).gr_name
    with sockets.open_socket(f"unix:{place}", Settings(socket_mode="666", socket_group=group)):
        assert stat.S_IMODE(place.stat().st_mode) == 0o666
    assert not place.exists()
    with (
        pytest.raises(WhitenError, match="nobody-has-this"),
        sockets.open_socket(f"unix:{place}", Settings(socket_group="nobody-has-this")),
    ):
        pytest.fail("it was opened")
    assert not place.exists()
    for mode in ("6660", "rw", 660):
        with pytest.raises(UsageError, match="socket_mode is"):
            Settings(socket_mode=mode)  # type: ignore[arg-type]


@pytest.mark.slow
def test_httptools_parses_where_it_is_asked_for(tiny_bundle: Path, tiny: Encoder, tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text('parser = "httptools"', "utf-8")
    with RunningServer(tiny_bundle, "--config", tmp_path / "serve.toml", "--drain", "0") as server:
        found = server.embed(TEXT).json()["data"][0]["embedding"]
        assert np.allclose(found, tiny.encode(TEXT), atol=1e-6 * np.linalg.norm(tiny.encode(TEXT)))
