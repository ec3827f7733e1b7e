"""The process of `whiten serve`: where it listens, what it says, how it ends."""

import json
import os
import pty
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.bundles import copy_bundle, rewrite_file
from support.server import COMMAND, RunningServer, environment, received, request, run, until
from whiten_runtime import Encoder
from whiten_serving.settings.table import options

TEXT = "A man is playing a guitar."


def is_one_line(said: str) -> bool:
    return said.count("\n") == 1 and said.startswith("error: ")


def test_the_vectors_are_the_encoders(tiny_bundle: Path, tiny: Encoder) -> None:
    with RunningServer(tiny_bundle, "--drain", 0) as server:
        assert np.allclose(
            server.embed(TEXT).vector(), tiny.encode(TEXT), atol=1e-6 * np.linalg.norm(tiny.encode(TEXT))
        )
        assert server.call("GET", "/ready").status == 200
        page = server.call("GET", "/metrics").body.decode()
        assert 'whiten_parity_cosine{model="bundle-v1"} 0.99999' in page
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert any(json.loads(line).get("route") == "/v1/embeddings" for line in server.lines)
        assert TEXT not in "\n".join(server.lines)


@pytest.mark.slow
def test_several_models_share_one_process(golden: Path) -> None:
    with RunningServer(f"a={golden / 'bundle-v1'}", f"b={golden / 'bundle-v1-int8'}") as server:
        first, second = server.embed(TEXT, "a").vector(), server.embed(TEXT, "b").vector()
        for name, found in (("bundle-v1", first), ("bundle-v1-int8", second)):
            with Encoder(golden / name) as encoder:
                assert np.allclose(found, encoder.encode(TEXT), atol=1e-5)
        assert first != second
        assert server.embed(TEXT, "c").status == 404
        ids = [one["id"] for one in server.call("GET", "/v1/models").json()["data"]]
        assert ids == ["a", "b"]


def test_info_tells_the_options_of_the_process(tiny_bundle: Path) -> None:
    given = ("--max-connections", "77", "--header-timeout", "3s", "--no-verify", "--max-wait", "7s")
    with RunningServer(tiny_bundle, *given) as server:
        found = server.call("GET", "/info").json()
        told = found["whiten"]["options"]
        assert list(told) == [option.key for option in options()]
        assert (told["max-connections"], told["header-timeout"], told["verify"]) == (77, 3.0, False)
        assert (told["grace"], told["drain"], told["max-headers"]) == (30.0, 5.0, 32_768)
        assert found["max_concurrent_requests"] == 77
        assert found["whiten"]["max_wait"] == told["max-wait"] == 7.0


def test_a_port_that_is_in_use(tiny_bundle: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, said = run(tiny_bundle, "--port", port)
    assert code == 1
    assert is_one_line(said)
    assert f"127.0.0.1:{port} is in use already" in said


@pytest.mark.slow
def test_two_servers_that_start_at_once_on_one_port(tiny_bundle: Path) -> None:
    """Neither listens before it is ready, so that the port is found to be in use late."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    servers = [RunningServer(tiny_bundle, "--port", port) for _ in range(2)]
    try:
        until(lambda: any(server.process.poll() is not None for server in servers))
        lost = next(server for server in servers if server.process.poll() is not None)
        won = next(server for server in servers if server is not lost)
        assert lost.wait() == 1
        assert is_one_line("\n".join(lost.lines) + "\n")
        assert f"127.0.0.1:{port} is in use already" in lost.lines[0]
        with won as server:
            assert server.embed(TEXT).status == 200
    finally:
        for server in servers:
            server.process.kill()
            server.wait()


def test_a_unix_socket(tiny_bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "s"
    with RunningServer(tiny_bundle, "--uds", place, "--drain", 0) as server:
        assert server.embed(TEXT).status == 200
        assert stat.S_IMODE(place.stat().st_mode) == 0o660
        code, said = run(tiny_bundle, "--uds", place)
        assert (code, is_one_line(said)) == (1, True)
        assert "another process listens there" in said
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    assert not place.exists()


@pytest.mark.slow
def test_a_unix_socket_that_a_killed_process_left(tiny_bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "s"
    with RunningServer(tiny_bundle, "--uds", place) as server:
        server.signal(signal.SIGKILL)
        server.wait()
    assert place.exists()
    with RunningServer(tiny_bundle, "--uds", place) as server:
        assert server.embed(TEXT).status == 200


@pytest.mark.slow
def test_a_file_in_the_place_of_a_unix_socket_is_kept(tiny_bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "notes.txt"
    place.write_text("keep me", "utf-8")
    code, said = run(tiny_bundle, "--uds", place)
    assert (code, is_one_line(said)) == (1, True)
    assert place.read_text("utf-8") == "keep me"


@pytest.mark.slow
def test_a_socket_that_systemd_opened(tiny_bundle: Path) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    with listening, RunningServer(tiny_bundle, "--fd", listening.fileno(), fds=[listening.fileno()]) as server:
        assert server.address == listening.getsockname()
        assert server.embed(TEXT).status == 200


@pytest.mark.slow
def test_a_descriptor_that_is_no_listening_socket(tiny_bundle: Path) -> None:
    for number in (0, 99):
        code, said = run(tiny_bundle, "--fd", number)
        assert (code, is_one_line(said)) == (2, True)
        assert f"--fd is {number}" in said


@pytest.mark.slow
def test_readiness_is_told_to_systemd(tiny_bundle: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(60)
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with RunningServer(tiny_bundle, "--drain", 0, variables=variables) as server:
            assert supervisor.recv(1000).startswith(b"READY=1\nSTATUS=serving on 127.0.0.1:")
            server.signal(signal.SIGHUP)
            assert supervisor.recv(1000).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
            assert supervisor.recv(1000).startswith(b"READY=1")
            server.signal(signal.SIGTERM)
            assert supervisor.recv(1000).startswith(b"STOPPING=1")
            assert server.wait() == 0


@pytest.mark.slow
def test_the_command_line_goes_before_the_environment_and_that_before_the_file(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(f'max-texts = 1\nmax-body = 700\n[models]\nfrom-file = "{tiny_bundle}"\n', "utf-8")
    variables = {"WHITEN_SERVE_MAX_TEXTS": "2", "WHITEN_SERVE_CONFIG": str(config)}
    with RunningServer(variables=variables) as server:
        assert [one["id"] for one in server.call("GET", "/v1/models").json()["data"]] == ["from-file"]
        statuses = [server.call("POST", "/v1/embeddings", {"input": ["a"] * n}).status for n in (2, 3)]
        assert statuses == [200, 413]
        assert server.embed("a" * 700).status == 413
    with RunningServer("--max-texts", 3, variables=variables) as server:
        statuses = [server.call("POST", "/v1/embeddings", {"input": ["a"] * n}).status for n in (3, 4)]
        assert statuses == [200, 413]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "there is no model to serve"),
        (["nowhere/at/all"], 1, "does not exist"),
        (["README.md"], 1, "README.md"),
        (["tests/data/bundle-v1-vectors"], 1, "takes vectors, not texts"),
        (["tests/data/bundle-v1", "--port", "high"], 2, "--port is 'high'"),
        (["tests/data/bundle-v1", "--api-key-file", "/none"], 1, "/none: No such file or directory; wanted a file of"),
        (["tests/data/bundle-v1", "--tls-cert", "README.md", "--tls-key", "README.md"], 1, "not a certificate"),
        (["tests/data/bundle-v1", "--host", "256.1.1.1.1"], 2, "--host is '256.1.1.1.1'"),
        (["tests/data/bundle-v1", "--host", "a..b"], 2, "--host is 'a..b'"),
        (["tests/data/bundle-v1", "--host", "a" * 70 + ".com"], 2, "which is no name of a machine"),
        (["tests/data/bundle-v1", "--host", "192.0.2.1"], 1, "cannot listen on 192.0.2.1"),
        (["tests/data/bundle-v1-int8", "--drift", "--device", "gpu"], 2, "gpu"),
        (["tests/data/bundle-v1", "--token-ids", "cl100k=/none"], 1, "/none"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], code: int, message: str) -> None:
    found, said = run(*arguments, *([] if "--port" in arguments else ["--port", "0"]))
    assert message in said
    assert is_one_line(said), said
    assert found == code


def test_a_config_with_an_unknown_key(tiny_bundle: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text("drian = 5\n", "utf-8")
    code, said = run(tiny_bundle, "--config", config)
    assert (code, is_one_line(said)) == (2, True)
    assert "there is no option 'drian'; did you mean drain?" in said


def test_a_bundle_that_this_machine_does_not_compute(golden: Path, tmp_path: Path) -> None:
    """The probes of another bundle stand for a machine that computes something else."""
    bundle = altered_probes(golden, tmp_path)
    code, said = run(bundle, "--port", "0")
    assert (code, is_one_line(said)) == (1, True)
    assert "not what" in said
    assert "--no-verify" in said
    with RunningServer(bundle, "--no-verify") as server:
        assert "parity not checked" in server.ready["models"][0]
        assert server.embed(TEXT).status == 200


def altered_probes(golden: Path, tmp_path: Path) -> Path:
    from safetensors.numpy import load_file, save

    bundle = copy_bundle(golden / "bundle-v1", tmp_path)
    probes = load_file(bundle / "probes.safetensors")
    rewrite_file(bundle, "probes.safetensors", save({name: value[::-1].copy() for name, value in probes.items()}))
    return bundle


@pytest.mark.slow
def test_missing_packages_are_named(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text(
        "raise ModuleNotFoundError('No module named uvicorn', name='uvicorn')", "utf-8"
    )
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    code, said = run(tiny_bundle, variables={"PYTHONPATH": path})
    assert (code, is_one_line(said)) == (1, True)
    assert "this needs uvicorn; install it with pip install 'whiten[serve]'" in said


@pytest.mark.slow
def test_the_terminal_shows_what_is_served_and_how_to_call_it(tiny_bundle: Path) -> None:
    server = RunningServer(tiny_bundle, "--log", "text", "--drain", 0)
    try:
        server.message("Ctrl-C drains and stops")
        shown = "\n".join(server.lines)
        for part in (
            "serving on http://127.0.0.1:",
            "bundle-v1: 32 dimensions, fp32, space ",
            "parity proven",
            "keys: none",
        ):
            assert part in shown
        command = next(line.strip() for line in server.lines if line.strip().startswith("curl "))
        if shutil.which("curl") is not None:
            answer = subprocess.run(shlex.split(command), capture_output=True, check=True, timeout=60)
            assert len(json.loads(answer.stdout)["data"][0]["embedding"]) == 32
    finally:
        server.process.kill()
        server.wait()


@pytest.mark.slow
def test_sigkill_and_restart(tiny_bundle: Path) -> None:
    with RunningServer(tiny_bundle) as server:
        before = server.embed(TEXT).vector()
        port = server.address[1]
        server.signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
    with RunningServer(tiny_bundle, "--port", port) as server:
        assert server.embed(TEXT).vector() == before


@pytest.mark.slow
def test_a_second_signal_ends_at_once(tiny_bundle: Path) -> None:
    with RunningServer(tiny_bundle, "--drain", "10m") as server:
        server.signal(signal.SIGTERM)
        server.message("draining")
        assert server.call("GET", "/ready").status == 503
        assert server.embed(TEXT).headers["connection"] == "close"
        server.signal(signal.SIGINT)
        assert server.wait() == 128 + signal.SIGINT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, -signal.SIGHUP), (signal.SIGINT, -signal.SIGINT)],
)
def test_a_signal_before_it_is_ready_ends_it_without_a_traceback(
    tiny_bundle: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """It waits for its keys when the signal comes; nothing was promised to anybody yet."""
    pipe = tmp_path / "keys"
    os.mkfifo(pipe, 0o600)
    arguments = [sys.executable, "-c", COMMAND, str(tiny_bundle), "--port", "0", "--api-key-file", str(pipe)]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, env=environment(), text=True)
    until(lambda: is_read(pipe))
    assert process.poll() is None
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert said.split() in ([], ["Aborted!"])


def is_read(pipe: Path) -> bool:
    """Return whether another process has opened a named pipe, which is kept open for it then."""
    try:
        os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_a_terminal_that_is_closed_stops_it(tiny_bundle: Path) -> None:
    """The same signal reloads elsewhere."""
    child, terminal = pty.fork()
    if child == 0:
        words = [sys.executable, "-c", COMMAND, str(tiny_bundle), "--port", "0", "--drain", "0"]
        os.execve(sys.executable, words, environment())
    said = b""
    while b"Ctrl-C" not in said:
        said += os.read(terminal, 65536)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.slow
def test_a_log_that_nobody_reads_ends_nothing(tiny_bundle: Path) -> None:
    """Whoever read its stderr has gone: every line that it writes fails."""
    with RunningServer(tiny_bundle, "--drain", 0, stderr_ends=True) as server:
        assert server.embed(TEXT).status == 200
        server.signal(signal.SIGHUP)
        assert server.embed(TEXT).status == 200
        server.signal(signal.SIGTERM)
        assert server.process.wait(60) == 0


@pytest.mark.slow
def test_a_log_that_is_not_read_stops_nothing(tiny_bundle: Path) -> None:
    """Its pipe is full: lines are left out, and counted, until it is read again."""
    command = [sys.executable, "-c", COMMAND, str(tiny_bundle), "--drain", "0"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.PIPE, env=environment())
    assert process.stderr is not None
    try:
        assert b"ready" in process.stderr.readline()
        for _ in range(600):
            with socket.create_connection(("127.0.0.1", port), 20) as sock:
                sock.settimeout(20)
                sock.sendall(request("GET", "/live", headers={"connection": "close"}))
                assert received(sock).startswith(b"HTTP/1.1 200")
        process.send_signal(signal.SIGTERM)
        lines = [json.loads(line) for line in process.stderr.read().splitlines()]
        assert process.wait(60) == 0
    finally:
        process.kill()
    requests = sum("route" in line for line in lines)
    lost = sum(line.get("lost", 0) for line in lines)
    assert 0 < requests < 600
    assert 600 <= requests + lost <= 602, "the lines of the end may be lost too"
