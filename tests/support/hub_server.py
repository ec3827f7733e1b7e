"""A server on this machine that speaks as much of the model hub's API as downloads and uploads need."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from support.hub_cache import COMMIT

TOKEN = "hf_token_of_the_tests"
READ_ONLY = "hf_token_that_may_only_read"

_LFS_SUFFIXES = (".onnx", ".onnx_data", ".safetensors")


class Hub:
    """Holds the files of repositories, and what was asked for.

    Attributes:
        url: address of the server.
        repositories: content of the files by their path, by the repository's id.
        commits: files of every commit that was uploaded, by its id.
        branches: commits of branches that were uploaded to, by (repository, branch).
        private: repositories that only the token sees.
        gated: repositories whose files are refused.
        fetched: paths of the files that were downloaded, in the order of the requests.
        asked: every request, as "METHOD path".
        breaks: path of a file whose download breaks off after half of it, once.
    """

    def __init__(self, url: str, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.url = url
        self.repositories = dict(repositories)
        self.commits: dict[str, Mapping[str, bytes]] = {}
        self.branches: dict[tuple[str, str], str] = {}
        self.private: set[str] = set()
        self.gated: set[str] = set()
        self.fetched: list[str] = []
        self.asked: list[str] = []
        self.objects: dict[str, bytes] = {}
        self.breaks: str | None = None

    def files(self, hub_id: str, revision: str) -> tuple[str, Mapping[str, bytes]] | None:
        """Return the commit and the files of a revision, or None if there is none."""
        commit = self.branches.get((hub_id, revision), revision)
        if commit in self.commits:
            return commit, self.commits[commit]
        return (COMMIT, self.repositories[hub_id]) if revision in ("main", COMMIT) else None

    def commit(self, hub_id: str, branch: str, operations: list[dict[str, Any]]) -> str:
        """Make a commit of uploaded files, and return its id."""
        found = self.files(hub_id, branch)
        files = dict(found[1]) if found else {}
        for operation in operations:
            kind, value = operation["key"], operation["value"]
            if kind == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
            elif kind == "deletedFile":
                del files[value["path"]]
        digest = hashlib.sha1(json.dumps(operations).encode(), usedforsecurity=False).hexdigest()
        self.commits[digest] = files
        self.branches[hub_id, branch] = digest
        if branch == "main":
            self.repositories[hub_id] = files
        return digest


@contextmanager
def serving(repositories: Mapping[str, Mapping[str, bytes]]) -> Iterator[Hub]:
    """Serve repositories until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_PUT(self) -> None:
            hub.asked.append(f"PUT {self.path}")
            content = self._body()
            hub.objects[hashlib.sha256(content).hexdigest()] = content
            self._send(200, b"", {}, True)

        def do_POST(self) -> None:
            hub.asked.append(f"POST {self.path}")
            body, parts = self._body(), unquote(self.path.split("?")[0]).strip("/").split("/")
            if parts == ["api", "validate-yaml"]:
                self._json({"errors": [], "warnings": []})
            elif self._token() not in (TOKEN, READ_ONLY):
                self._send(401, b"{}", {"X-Error-Message": "Invalid credentials in Authorization header"}, True)
            elif self._token() == READ_ONLY:
                self._send(403, b"{}", {"X-Error-Message": "You don't have the rights to write"}, True)
            elif parts == ["api", "repos", "create"]:
                self._create(json.loads(body))
            elif parts[-4:] == ["info", "lfs", "objects", "batch"]:
                objects = [
                    {**one, "actions": {"upload": {"href": f"{hub.url}/lfs/{one['oid']}"}}}
                    for one in json.loads(body)["objects"]
                ]
                self._json({"transfer": "basic", "objects": objects})
            elif (hub_id := "/".join(parts[2:4])) not in hub.repositories:
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, True)
            elif parts[4] == "branch":
                branch, known = "/".join(parts[5:]), hub.files(hub_id, "/".join(parts[5:]))
                if known is None:
                    commit = hub.branches.get((hub_id, "main"), COMMIT)
                    hub.commits.setdefault(commit, hub.repositories[hub_id])
                    hub.branches[hub_id, branch] = commit
                self._send(409 if known else 201, b"{}", {}, True)
            elif hub.files(hub_id, "/".join(parts[5:])) is None:
                self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, True)
            elif parts[4] == "preupload":
                modes = [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["path"].endswith(_LFS_SUFFIXES) else "regular",
                        "shouldIgnore": False,
                    }
                    for file in json.loads(body)["files"]
                ]
                self._json({"files": modes})
            else:
                commit = hub.commit(hub_id, "/".join(parts[5:]), [json.loads(line) for line in body.splitlines()])
                self._json({"commitUrl": f"{hub.url}/{hub_id}/commit/{commit}", "commitOid": commit})

        def log_message(self, *arguments: object) -> None:
            """Stay silent."""

        def _create(self, wanted: dict[str, Any]) -> None:
            hub_id = f"{wanted['organization']}/{wanted['name']}"
            if hub_id in hub.repositories:
                self._send(409, json.dumps({"url": f"{hub.url}/{hub_id}"}).encode(), {}, True)
                return
            hub.repositories[hub_id] = {".gitattributes": b""}
            if wanted.get("private") or wanted.get("visibility") == "private":
                hub.private.add(hub_id)
            self._json({"url": f"{hub.url}/{hub_id}"})

        def _answer(self, with_body: bool) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            parts = unquote(self.path.split("?")[0]).strip("/").split("/")
            api = parts[:2] == ["api", "models"]
            parts = parts[2:] if api else parts
            hub_id = "/".join(parts[:2])
            files = hub.repositories.get(hub_id)
            unseen = hub_id in hub.private and self._token() not in (TOKEN, READ_ONLY)
            revision = parts[3] if parts[3:] else "main"
            if files is None or unseen:
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
                return
            if (found := hub.files(hub_id, revision)) is None:
                self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body)
                return
            commit, files = found
            if api and "tree" in parts:
                rows = [
                    {"type": "file", "path": path, "size": len(content), "oid": _etag(path, content)}
                    for path, content in files.items()
                ]
                self._send(200, json.dumps(rows).encode(), {}, with_body)
            elif api:
                siblings = [{"rfilename": path} for path in files]
                private = hub_id in hub.private
                whole = {"id": hub_id, "sha": commit, "siblings": siblings, "private": private}
                self._send(200, json.dumps(whole).encode(), {}, with_body)
            elif hub_id in hub.gated:
                self._send(403, b"{}", {"X-Error-Code": "GatedRepo"}, with_body)
            elif (content := files.get(path := "/".join(parts[4:]))) is None:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, with_body)
            else:
                if with_body:
                    hub.fetched.append(path)
                self._file(path, content, commit, with_body)

        def _file(self, path: str, content: bytes, commit: str, with_body: bool) -> None:
            headers = {"ETag": f'"{_etag(path, content)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
            start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            if start is not None:
                first = int(start[1])
                headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
                self._send(206, content[first:], headers, with_body)
            elif with_body and hub.breaks == path:
                hub.breaks = None
                self._send(200, content, headers, with_body, len(content) // 2)
                self.close_connection = True
            else:
                self._send(200, content, headers, with_body)

        def _token(self) -> str:
            return self.headers.get("Authorization", "").removeprefix("Bearer ")

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            content = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return content

        def _json(self, value: object) -> None:
            self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"}, True)

        def _send(
            self, status: int, content: bytes, headers: Mapping[str, str], with_body: bool, sent: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(content[:sent])

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


def connect(monkeypatch: pytest.MonkeyPatch, hub: Hub, cache: Path, token: str | None = None) -> None:
    """Let this process's client use a server, with a cache of its own and a token."""
    from huggingface_hub import constants, file_download

    for name, value in {
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_CACHE": str(cache),
        "HF_TOKEN_PATH": str(cache / "no-token"),
        "ENDPOINT": hub.url,
    }.items():
        monkeypatch.setattr(constants, name, value)
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    for module in (constants, file_download):  # older versions keep it twice
        if hasattr(module, "HUGGINGFACE_CO_URL_TEMPLATE"):
            monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)


def _etag(path: str, content: bytes) -> str:
    """Return what a cache takes for the name of the content: with the path, so that each file is downloaded."""
    return hashlib.sha1(path.encode() + content, usedforsecurity=False).hexdigest()
