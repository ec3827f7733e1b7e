"""A server on this machine that speaks as much of the model hub's API as a download needs."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from support.hub_cache import COMMIT


class Hub:
    """Holds the files of repositories, and what was asked for.

    Attributes:
        url: address of the server.
        repositories: content of the files by their path, by the repository's id.
        fetched: paths of the files that were downloaded, in the order of the requests.
    """

    def __init__(self, url: str, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.url = url
        self.repositories = repositories
        self.fetched: list[str] = []


@contextmanager
def serving(repositories: Mapping[str, Mapping[str, bytes]]) -> Iterator[Hub]:
    """Serve repositories until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, *arguments: object) -> None:
            """Stay silent."""

        def _answer(self, with_body: bool) -> None:
            parts = self.path.split("?")[0].strip("/").split("/")
            api = parts[:2] == ["api", "models"]
            parts = parts[2:] if api else parts
            files = hub.repositories.get("/".join(parts[:2]))
            if files is None:
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
            elif api and parts[3:] and parts[3] not in ("main", COMMIT):
                self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body)
            elif api and "tree" in parts:
                rows = [
                    {"type": "file", "path": path, "size": len(content), "oid": _etag(path, content)}
                    for path, content in files.items()
                ]
                self._send(200, json.dumps(rows).encode(), {}, with_body)
            elif api:
                siblings = [{"rfilename": path} for path in files]
                found = {"id": "/".join(parts[:2]), "sha": COMMIT, "siblings": siblings, "private": False}
                self._send(200, json.dumps(found).encode(), {}, with_body)
            elif (content := files.get(path := "/".join(parts[4:]))) is None:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, with_body)
            else:
                if with_body:
                    hub.fetched.append(path)
                self._send(200, content, {"ETag": f'"{_etag(path, content)}"', "X-Repo-Commit": COMMIT}, with_body)

        def _send(self, status: int, content: bytes, headers: Mapping[str, str], with_body: bool) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_port}", repositories)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _etag(path: str, content: bytes) -> str:
    """Return what a cache takes for the name of the content: with the path, so that each file is downloaded."""
    return hashlib.sha1(path.encode() + content, usedforsecurity=False).hexdigest()
