"""nginx and haproxy before two servers that are replaced one after another, and the nginx of the page."""

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from support.ports import free_port
from support.server import RunningServer, until

pytestmark = pytest.mark.slow

CLIENTS = 64

NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log stderr;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream whiten {{
    server 127.0.0.1:{first} max_fails=0;  # else a server that is back is not asked for 10 s
    server 127.0.0.1:{second} max_fails=0;
    keepalive 32;
  }}
  server {{
    listen 127.0.0.1:{port};
    keepalive_requests 100000;
    location / {{
      proxy_pass http://whiten;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host localhost;  # the server is asked by its own name, not by that of the upstream
      proxy_buffering {buffering};
      proxy_request_buffering {buffering};
      proxy_next_upstream error timeout http_503 non_idempotent;
    }}
  }}
}}
"""

HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  option redispatch
  retries 3
  retry-on conn-failure empty-response response-timeout 503
  {buffering}
frontend all
  bind 127.0.0.1:{port}
  default_backend whiten
backend whiten
  http-reuse safe
  option httpchk GET /ready
  timeout check 1s  # else that of inter: on a busy machine, both servers seemed to be gone
  default-server check inter 200ms fall 2 rise 1
  server first 127.0.0.1:{first}
  server second 127.0.0.1:{second}
"""


PAGE = Path(__file__).parents[2] / "docs" / "guides" / "production.md"


@contextmanager
def proxy(program: str, folder: Path, buffering: bool, ports: tuple[int, int]) -> Iterator[int]:
    """Run a proxy in front of two ports, and give its own."""
    words = {
        "nginx": (NGINX, "on" if buffering else "off"),
        "haproxy": (HAPROXY, "option http-buffer-request" if buffering else ""),
    }
    template, option = words[program]
    first, second = ports
    port = free_port()
    content = template.format(folder=folder, first=first, second=second, port=port, buffering=option)
    with running(program, folder, content, port):
        yield port


@contextmanager
def running(program: str, folder: Path, content: str, port: int) -> Iterator[None]:
    """Run a proxy with what its file of configuration holds, and wait until it listens."""
    command, place = shutil.which(program), folder / "conf"
    if command is None:
        pytest.skip(f"{program} is not here")
    place.write_text(content, "utf-8")
    options = {"nginx": ["-c", str(place), "-p", str(folder)], "haproxy": ["-f", str(place)]}
    process = subprocess.Popen([command, *options[program]], stderr=(folder / "log").open("wb"))

    def listens() -> bool:
        assert process.poll() is None, (folder / "log").read_text("utf-8")
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens)
        yield
    finally:
        process.terminate()
        process.wait(60)


class Clients:
    """Post one request after another, each with an id of its own, on connections that go on.

    Head and body are one write: with httpx, which writes them apart, nginx without buffers loses requests (502).
    """

    def __init__(self, port: int) -> None:
        self.port, self.done, self.lost = port, set[str](), list[str]()
        self.stopped = False

    async def run(self, name: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        number = 0
        while not self.stopped:
            number += 1
            request_id, texts = f"{name}-{number}", [f"text {number % 50}"] * (1 + number % 3)
            body = json.dumps({"input": texts}).encode()
            head = "POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            writer.write(f"{head}x-request-id: {request_id}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
            try:
                answer = await self.answer(reader)
            except (OSError, EOFError, asyncio.IncompleteReadError) as error:
                self.lost.append(f"{request_id}: {error!r}")
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                continue
            status, answered, closes, content = answer
            if (status, answered) == (200, request_id) and len(json.loads(content)["data"]) == len(texts):
                assert request_id not in self.done
                self.done.add(request_id)
            else:
                self.lost.append(f"{request_id}: {status} {answered} {content[:100]!r}")
            if closes:
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.close()

    @staticmethod
    async def answer(reader: asyncio.StreamReader) -> tuple[int, str, bool, bytes]:
        """Read one answer: status, id, whether the connection ends, and body. Bytes of a second one would break it."""
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).decode().lower()
        found = re.search(r"x-request-id: (\S+)", head)
        if "transfer-encoding: chunked" in head:
            content = b""
            while size := int(await reader.readline(), 16):
                content += await reader.readexactly(size)
                await reader.readexactly(2)
            await reader.readexactly(2)
        else:
            content = await reader.readexactly(int(re.search(r"content-length: (\d+)", head)[1]))  # type: ignore[index]
        return int(head.split()[1]), found[1] if found else "", "connection: close" in head, content


def wait_for_more(clients: Clients) -> None:
    """Wait until some hundred more requests are answered."""
    before = len(clients.done)
    until(lambda: len(clients.done) > before + 200)


def is_answer(line: str) -> bool:
    """Tell whether a line of a server's log is that of a request for vectors that got them."""
    return '"status":200' in line and '"/v1/embeddings"' in line


@pytest.mark.parametrize("buffering", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("program", ["nginx", "haproxy"])
def test_a_rolling_restart_loses_no_request(golden: Path, tmp_path: Path, program: str, buffering: bool) -> None:
    ports = free_port(), free_port()

    def serve(port: int, stack: ExitStack) -> RunningServer:
        words = (f"tiny={golden / 'bundle-v1'}", "--listen", port, "--drain", 2, "--log", "json")
        return stack.enter_context(RunningServer(*words))

    async def load(clients: Clients, restart: Callable[[], None]) -> None:
        running = [asyncio.create_task(clients.run(name)) for name in range(CLIENTS)]
        try:
            await asyncio.to_thread(restart)
        finally:
            clients.stopped = True
            await asyncio.gather(*running)

    with ExitStack() as stack:
        servers = [serve(port, stack) for port in ports]
        with proxy(program, tmp_path, buffering, ports) as port:
            clients = Clients(port)
            everyone = list(servers)

            def restart() -> None:
                for place, own in enumerate(ports):
                    wait_for_more(clients)
                    servers[place].signal(signal.SIGTERM)
                    assert servers[place].wait() == 0
                    servers[place] = serve(own, stack)
                    everyone.append(servers[place])
                    until(lambda new=servers[place]: any(map(is_answer, new.lines)))  # type: ignore[misc]
                wait_for_more(clients)

            asyncio.run(asyncio.wait_for(load(clients, restart), 300))
        assert clients.lost == []
        answered = [json.loads(line)["id"] for server in everyone for line in server.lines if is_answer(line)]
        assert len(answered) == len(set(answered)), "a request was answered twice"
        assert clients.done <= set(answered)


def test_the_configuration_of_the_page_does_what_the_server_leaves_to_it(golden: Path, tmp_path: Path) -> None:
    """A body of 2 MB reaches the server; of 200 requests, those beyond the burst get 429; slow heads are cut off."""
    block = textwrap.dedent(PAGE.read_text("utf-8").partition("```nginx\n")[2].partition("```")[0])
    own, port = free_port(), free_port()
    block = block.replace("listen 80;", f"listen 127.0.0.1:{port};").replace("127.0.0.1:8080", f"127.0.0.1:{own}")
    block = block.replace("rate=50r/s", "rate=1r/s")  # a slow machine sends too many of these too
    block = block.replace("client_header_timeout 10s", "client_header_timeout 1s")
    paths = " ".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
    head = f"daemon off; master_process off; pid {tmp_path}/pid; error_log stderr; events {{}}"
    content = f"{head} http {{ access_log off; client_body_temp_path {tmp_path}/body; {paths} {block} }}"

    def status(texts: list[str]) -> int:
        return httpx.post(f"http://127.0.0.1:{port}/v1/embeddings", json={"input": texts}, timeout=120).status_code

    with (
        RunningServer(f"tiny={golden / 'bundle-v1'}", "--listen", own),
        running("nginx", tmp_path, content, port),
    ):
        assert status(["word " * 1000] * 400) == 200
        assert httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=120).status_code == 404
        with socket.create_connection(("127.0.0.1", port), 120) as slow:
            slow.sendall(b"GET /live HTTP/1.1\r\nhost:")
            assert b" 200 " not in slow.recv(1000)  # it ends
        answers = [status(["a text"]) for _ in range(200)]
    assert set(answers) == {200, 429}
