"""A hub on this machine: the routes that the real client calls for downloads and uploads, and what is in its cache."""

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

TOKEN, READ_ONLY = "hf_token_of_the_tests", "hf_token_that_may_only_read"
COMMIT = "1234567890" * 4
"""Commit of the repositories that are put into a cache by hand."""

Files = Mapping[str, bytes]


class Hub:
    """Holds repositories, and records what was asked for."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.repositories: dict[str, Files] = {}  # files of the main branch, by the repository's id
        self.branches: dict[tuple[str, str], Files] = {}  # files of another branch, by (repository's id, branch)
        self.commits: dict[str, Files] = {}  # files of the commits that were looked at
        self.private: set[str] = set()  # repositories that only a token sees
        self.gated: set[str] = set()  # repositories whose files are refused
        self.gated_files: set[str] = set()  # files that are refused, of all repositories
        self.names_commits = True  # whether answers name the commit, as a plain mirror's do not
        self.asked: list[str] = []  # every request, as "METHOD path"
        self.fetched: list[str] = []  # files that were downloaded

    def revisions(self, hub_id: str) -> dict[str, Files]:
        """Return the files of each branch of a repository, by the branch and by its commit."""
        others = {branch: files for (name, branch), files in self.branches.items() if name == hub_id}
        named = {"main": self.repositories[hub_id]} | others
        return named | {commit_of(files): files for files in named.values()}


def commit_of(files: Files) -> str:
    """Return the commit of files: a hash of their names and contents."""
    digest = hashlib.sha1(usedforsecurity=False)
    for name, content in files.items():
        digest.update(name.encode() + content)
    return digest.hexdigest()


def make_snapshot(cache: Path, hub_id: str) -> Path:
    """Make a repository in a cache of the hub, and return the folder for its files, not yet made."""
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return repository / "snapshots" / COMMIT


@contextmanager
def serving_hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[Hub]:
    """Serve a hub without repositories, which this process's client uses with a cache and a token, in the block."""
    from huggingface_hub import constants, file_download

    listening = socket.create_server(("127.0.0.1", 0))
    hub = Hub(f"http://127.0.0.1:{listening.getsockname()[1]}")
    server = _started(hub, listening)
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
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield hub
    server.should_exit = True


def _started(hub: Hub, listening: socket.socket) -> Any:
    """Start a server in a thread."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    def repository(request: Request) -> str:
        """Return the repository that a request may see."""
        hub_id = "{org}/{name}".format(**request.path_params)
        if hub_id not in hub.repositories or (hub_id in hub.private and token(request) not in (TOKEN, READ_ONLY)):
            raise HTTPException(404, headers={"X-Error-Code": "RepoNotFound"})
        return hub_id

    def token(request: Request) -> str:
        return request.headers.get("authorization", "").removeprefix("Bearer ")

    def check_writer(request: Request) -> None:
        if token(request) == READ_ONLY:
            raise HTTPException(403, headers={"X-Error-Message": "You don't have the rights to write"})
        if token(request) != TOKEN:
            raise HTTPException(401, headers={"X-Error-Message": "Invalid credentials in Authorization header"})

    def files_of(request: Request) -> Files:
        found = hub.revisions(repository(request)).get(request.path_params.get("revision", "main"))
        if found is None:
            raise HTTPException(404, headers={"X-Error-Code": "RevisionNotFound"})
        return found

    async def describe(request: Request) -> Response:
        files, hub_id = files_of(request), repository(request)
        names = [{"rfilename": name} for name in files]
        hub.commits[commit_of(files)] = files
        private = hub_id in hub.private
        return JSONResponse({"id": hub_id, "sha": commit_of(files), "siblings": names, "private": private})

    async def tree(request: Request) -> Response:
        files = files_of(request).items()
        return JSONResponse([{"type": "file", "path": n, "size": len(c), "oid": commit_of({n: c})} for n, c in files])

    async def download(request: Request) -> Response:
        files, path = files_of(request), request.path_params["path"]
        if repository(request) in hub.gated or path in hub.gated_files:
            raise HTTPException(403, headers={"X-Error-Code": "GatedRepo"})
        if path not in files:
            raise HTTPException(404, headers={"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit_of(files)})
        if request.method == "GET":
            hub.fetched.append(path)
        # A cache keeps files of one ETag once: with the path in it, every file is downloaded.
        named = {"X-Repo-Commit": commit_of(files)} if hub.names_commits else {}
        return Response(files[path], headers={"ETag": commit_of({path: files[path]})} | named)

    async def create(request: Request) -> Response:
        check_writer(request)
        wanted = await request.json()
        hub_id = f"{wanted['organization']}/{wanted['name']}"
        if hub_id in hub.repositories:
            return JSONResponse({"url": f"{hub.url}/{hub_id}"}, 409)
        hub.repositories[hub_id] = {".gitattributes": b""}
        if wanted.get("private") or wanted.get("visibility") == "private":  # older and newer clients
            hub.private.add(hub_id)
        return JSONResponse({"url": f"{hub.url}/{hub_id}"})

    async def branch(request: Request) -> Response:
        check_writer(request)
        hub_id, name = repository(request), request.path_params["revision"]
        if name in hub.revisions(hub_id):
            return JSONResponse({}, 409)
        hub.branches[hub_id, name] = hub.commits[(await request.json())["startingPoint"]]
        return JSONResponse({}, 201)

    async def preupload(request: Request) -> Response:
        """Have every file sent within the commit, none to the store of large files."""
        check_writer(request)
        files_of(request)
        files = (await request.json())["files"]
        return JSONResponse({"files": [file | {"uploadMode": "regular", "shouldIgnore": False} for file in files]})

    async def commit(request: Request) -> Response:
        check_writer(request)
        hub_id, name, files = repository(request), request.path_params["revision"], dict(files_of(request))
        for operation in map(json.loads, (await request.body()).splitlines()):
            value = operation["value"]
            if operation["key"] == "header" and value.get("parentCommit") not in (None, commit_of(files)):
                raise HTTPException(412, headers={"X-Error-Message": "A commit has happened since. Please refresh"})
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "deletedFile":
                del files[value["path"]]
        if name == "main":
            hub.repositories[hub_id] = files
        else:
            hub.branches[hub_id, name] = files
        made = commit_of(files)
        return JSONResponse({"commitUrl": f"{hub.url}/{hub_id}/commit/{made}", "commitOid": made})

    model = "/api/models/{org}/{name}"
    routes = Starlette(
        routes=[
            Route(model, describe),
            Route(model + "/revision/{revision:path}", describe),
            Route(model + "/tree/{revision:path}", tree),
            Route("/{org}/{name}/resolve/{revision}/{path:path}", download),
            Route("/api/repos/create", create, methods=["POST"]),
            Route(model + "/branch/{revision:path}", branch, methods=["POST"]),
            Route(model + "/preupload/{revision:path}", preupload, methods=["POST"]),
            Route(model + "/commit/{revision:path}", commit, methods=["POST"]),
            Route("/api/validate-yaml", lambda request: JSONResponse({"errors": [], "warnings": []}), methods=["POST"]),
        ]
    )

    async def app(scope: Any, receive: Any, send: Any) -> None:
        hub.asked.append(f"{scope['method']} {scope['path']}")
        await routes(scope, receive, send)

    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error"))
    threading.Thread(target=server.run, args=([listening],), daemon=True).start()
    return server
