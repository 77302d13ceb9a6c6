"""A loopback hub: dataset repositories over the routes that the real `huggingface_hub` client uses.

`Hub` keeps commits in memory. `token` is asked for before anything is written, or read of a private
repository; files of at least `lfs_from` bytes travel as LFS objects. `before_commit` is called with the
number of each commit (from 0) before it is looked at: it may commit something else in between.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from servers import Loop


@dataclass
class Repo:
    """A repository: its commits, newest last, as (id, path -> content)."""

    private: bool = False
    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)

    @property
    def files(self) -> dict[str, bytes]:
        """What the newest commit holds."""
        return self.commits[-1][1]

    def commit(self, changes: Mapping[str, bytes | None]) -> str:
        """Add files, or remove those that are None."""
        files = {**(self.commits[-1][1] if self.commits else {}), **changes}
        kept = {path: content for path, content in sorted(files.items()) if content is not None}
        text = repr([self.commits[-1][0] if self.commits else os.urandom(8), sorted(kept.items())])
        self.commits.append((hashlib.sha1(text.encode()).hexdigest(), kept))
        return self.commits[-1][0]

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """A commit by its id or a branch."""
        if revision in ("main", "refs%2Fheads%2Fmain"):
            return self.commits[-1]
        return next((commit for commit in self.commits if commit[0] == revision), None)


class Hub(Loop):
    """A hub on a thread of its own."""

    def __init__(self, token: str | None = None, lfs_from: int = 1 << 40) -> None:
        super().__init__()
        self.token, self.lfs_from = token, lfs_from
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.before_commit: Callable[[int], None] = lambda _: None
        self.committed: list[list[str]] = []  # the paths of each commit, refused ones too
        self.asked: list[tuple[str, str, str | None]] = []  # method, path, range

    @property
    def url(self) -> str:
        """What HF_ENDPOINT is set to."""
        return f"http://127.0.0.1:{self.port}"

    def repo(self, name: str) -> Repo:
        """A public repository with one commit, made if it is not there."""
        if name not in self.repos:
            self.repos[name] = Repo()
            self.repos[name].commit({".gitattributes": b"*.parquet filter=lfs\n"})
        return self.repos[name]

    def routes(self) -> list[web.RouteDef]:
        """What the client asks."""
        api = "/api/datasets/{owner}/{name}"
        return [
            web.get(api, self.info),
            web.get(api + "/revision/{revision}", self.info),
            web.get(api + "/tree/{revision}{path:.*}", self.tree),
            web.post(api + "/paths-info/{revision}", self.paths_info),
            web.post(api + "/preupload/{revision}", self.preupload),
            web.post(api + "/commit/{revision}", self.commit),
            web.post("/api/repos/create", self.create),
            web.post("/api/validate-yaml", self.validate),
            web.post("/datasets/{owner}/{name}.git/info/lfs/objects/batch", self.batch),
            web.put("/objects/{oid}", self.put),
            web.get("/datasets/{owner}/{name}/resolve/{revision}/{path:.+}", self.resolve),
        ]

    # reading

    async def info(self, request: web.Request) -> web.Response:
        sha, files = self._found(request)
        name = _name(request)
        siblings = [{"rfilename": path} for path in files]
        facts = {"id": name, "sha": sha, "private": self.repos[name].private, "siblings": siblings}
        return web.json_response(
            facts
            | {"gated": False, "disabled": False, "lastModified": "2026-01-01T00:00:00.000Z", "tags": []}
        )

    async def tree(self, request: web.Request) -> web.Response:
        _, files = self._found(request)
        below = request.match_info["path"].strip("/")
        return web.json_response(
            [_entry(p, c) for p, c in files.items() if not below or p.startswith(f"{below}/")]
        )

    async def paths_info(self, request: web.Request) -> web.Response:
        _, files = self._found(request)
        form = await request.post()
        wanted = form.getall("paths") if "paths" in form else (await request.json())["paths"]
        return web.json_response([_entry(str(p), files[str(p)]) for p in wanted if str(p) in files])

    async def resolve(self, request: web.Request) -> web.StreamResponse:
        sha, files = self._found(request)
        content = files.get(request.match_info["path"])
        if content is None:
            raise _refusal(404, "EntryNotFound", sha)
        headers = {"X-Repo-Commit": sha, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
        if span := request.headers.get("Range"):
            start, end = (int(part) for part in span.removeprefix("bytes=").split("-"))
            headers["Content-Range"] = f"bytes {start}-{min(end, len(content) - 1)}/{len(content)}"
            return web.Response(status=206, body=content[start : end + 1], headers=headers)
        return web.Response(body=content, headers={**headers, "Accept-Ranges": "bytes"})

    # writing

    async def create(self, request: web.Request) -> web.Response:
        self._may_write(request)
        body = await request.json()
        name = f"{body.get('organization') or 'me'}/{body['name']}"
        status = 409 if name in self.repos else 200
        self.repo(name).private |= bool(body.get("private") or body.get("visibility") == "private")
        return web.json_response({"url": f"{self.url}/datasets/{name}"}, status=status)

    async def validate(self, request: web.Request) -> web.Response:
        text = (await request.json())["content"]
        assert text.startswith("---\n")
        return web.json_response({"errors": [], "warnings": []})

    async def preupload(self, request: web.Request) -> web.Response:
        self._may_write(request)
        files = (await request.json())["files"]
        return web.json_response(
            {
                "files": [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["size"] >= self.lfs_from else "regular",
                        "shouldIgnore": False,
                    }
                    for file in files
                ]
            }
        )

    async def batch(self, request: web.Request) -> web.Response:
        self._may_write(request)
        wanted = (await request.json())["objects"]
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.url}/objects/{one['oid']}"}}}
            if one["oid"] not in self.objects
            else one
            for one in wanted
        ]
        return web.json_response({"transfer": "basic", "objects": objects})

    async def put(self, request: web.Request) -> web.Response:
        content = await request.read()
        assert hashlib.sha256(content).hexdigest() == request.match_info["oid"]
        self.objects[request.match_info["oid"]] = content
        return web.Response()

    async def commit(self, request: web.Request) -> web.Response:
        self._may_write(request)
        lines = [json.loads(line) for line in (await request.read()).splitlines()]
        header = next(line["value"] for line in lines if line["key"] == "header")
        changes: dict[str, bytes | None] = {}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                changes[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                changes[value["path"]] = self.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                changes[value["path"]] = None
        number = len(self.committed)
        self.committed.append(sorted(changes))
        await asyncio.to_thread(self.before_commit, number)
        repo = self.repos[_name(request)]
        if header.get("parentCommit") not in (None, repo.commits[-1][0]):
            raise web.HTTPPreconditionFailed(text=json.dumps({"error": "A commit has happened since."}))
        sha = repo.commit(changes)
        return web.json_response(
            {
                "success": True,
                "commitOid": sha,
                "commitUrl": f"{self.url}/datasets/{_name(request)}/commit/{sha}",
            }
        )

    def _found(self, request: web.Request) -> tuple[str, dict[str, bytes]]:
        self.asked.append((request.method, request.path, request.headers.get("Range")))
        repo = self.repos.get(_name(request))
        if repo is None or (repo.private and not self._is_known(request)):
            raise _refusal(401 if "Authorization" not in request.headers else 404, "RepoNotFound")
        found = repo.at(request.match_info.get("revision", "main"))
        if found is None:
            raise _refusal(404, "RevisionNotFound")
        return found

    def _may_write(self, request: web.Request) -> None:
        if not self._is_known(request):
            raise _refusal(401, None)

    def _is_known(self, request: web.Request) -> bool:
        return self.token is None or request.headers.get("Authorization") == f"Bearer {self.token}"


def _name(request: web.Request) -> str:
    return f"{request.match_info['owner']}/{request.match_info['name']}"


def _entry(path: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content), "path": path}


def _refusal(status: int, code: str | None, sha: str | None = None) -> web.HTTPException:
    headers = {"X-Error-Message": "no"} | ({"X-Error-Code": code} if code else {})
    kind = {401: web.HTTPUnauthorized, 404: web.HTTPNotFound}[status]
    return kind(headers=headers | ({"X-Repo-Commit": sha} if sha else {}), text=json.dumps({"error": "no"}))


@contextmanager
def served(hub: Hub, patch: pytest.MonkeyPatch, cache: str) -> Iterator[Hub]:
    """The hub, with the client of this process talking to it, logged in, and with a cache of its own.

    The client reads its environment when it is imported, so what it read is set; another process is
    given the environment (see `environment`).
    """
    from huggingface_hub import HfFileSystem, constants

    with hub:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + template)
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HF_HUB_CACHE", cache)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        patch.setattr(constants, "HF_TOKEN_PATH", f"{cache}/token")
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            patch.delenv(name, raising=False)
        if hub.token is not None:
            patch.setenv("HF_TOKEN", hub.token)
        HfFileSystem.clear_instance_cache()
        yield hub
        HfFileSystem.clear_instance_cache()


def environment(hub: Hub, cache: str) -> dict[str, str]:
    """Of another process that is to talk to the hub."""
    said = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": cache,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    return {**os.environ, **said, **({"HF_TOKEN": hub.token} if hub.token else {})}
