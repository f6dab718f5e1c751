"""A stand-in for an API server: objects in memory, lists, watches, patches, deletion with finalizers. No validation.

The operator's process runs against it where there is no cluster. The tests in tests/cluster use a real API server.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import jsonpatch
from aiohttp import web
from tests.operator.samples import merge
from tests.rigs.waiting import LIMIT_S

from levada_operator.kube.interface import RESOURCES

_KINDS = {r.plural: kind for kind, r in RESOURCES.items()}


class Request(NamedTuple):
    """A request as it arrived. ``token`` identifies its sender."""

    method: str
    path: str
    token: str


class StandInApiServer:
    """A context manager that serves on a free port of the loopback."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.requests: list[Request] = []
        self.refused: set[str] = set()
        """Kinds of which nothing can be made, as if the namespace were being deleted."""
        self.busy: set[str] = set()
        """Kinds of which no list is answered, but with 429, as by an API server under load."""
        self.held: set[str] = set()
        """Kinds of which no list ends, until they are no longer here."""
        self.webhook: Callable[[dict[str, Any]], None] = lambda _: None
        """Changes each object that is applied, as a mutating admission webhook does."""
        self.meanwhile: dict[int, dict[str, Any]] = {}
        """Changes that users make right before a status of that generation is written, so that the answer has them."""
        self.watch_late_s = 0.0
        """The seconds by which each event of a watch is late."""
        self.operator_port = 0
        """The port of the probes of the last operator that was started."""
        self._version = 100
        self._events: list[dict[str, Any]] = []
        """All events, so that a watch has those since the list that it follows."""
        self._watchers: list[tuple[str, asyncio.Queue[dict[str, Any]]]] = []
        self._loop = asyncio.new_event_loop()
        self._lock = threading.RLock()
        self.port = 0

    def __enter__(self) -> StandInApiServer:
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)

    def kubeconfig(self, token: str = "t") -> str:
        """Return the text of a kubeconfig with that token."""
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
                "users": [{"name": "u", "user": {"token": token}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "data"}}],
                "current-context": "x",
            }
        )

    def put(self, body: dict[str, Any], *, kind: str = "") -> None:
        """Make or merge an object, as a user would."""
        with self._lock:
            self._merge(kind or body["kind"], body["metadata"]["namespace"], body["metadata"]["name"], body)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object of the namespace data."""
        with self._lock:
            return self.objects.get((kind, "data", name))

    def all(self) -> list[tuple[tuple[str, str, str], dict[str, Any]]]:
        """Return all objects that are there now, each with its kind, namespace and name."""
        with self._lock:
            return list(self.objects.items())

    def delete(self, kind: str, name: str) -> None:
        """Delete an object: at once, or when its last finalizer goes."""
        with self._lock:
            self._delete(kind, "data", name)

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

        async def start() -> None:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]  # it has begun
            started.set()

        self._loop.run_until_complete(start())
        self._loop.run_forever()

        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await runner.cleanup()

        self._loop.run_until_complete(end())
        self._loop.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.requests.append(Request(request.method, request.path, token))
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        if not rest:
            return self._discovery(parts)
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        kind = _KINDS.get(rest[0], "")
        # Read before anything is looked up: another request may be answered meanwhile.
        sent = json.loads(text) if (text := await request.text()) else {}
        if request.method == "POST" and len(rest) == 1:
            with self._lock:
                return web.json_response(sent) if "dryRun" in request.query else self._created(kind, namespace, sent)
        if len(rest) == 1:
            if request.query.get("watch"):
                return await self._watch(request, kind)
            if kind in self.busy:
                return web.json_response({"message": "too many requests"}, status=429, headers={"Retry-After": "1"})
            while kind in self.held:
                await asyncio.sleep(0.05)
            return web.json_response(self._list(kind, request.query.get("labelSelector", "")))
        with self._lock:
            return self._one(request, sent, (kind, namespace, rest[1]), "/".join(rest[2:]))

    def _discovery(self, parts: list[str]) -> web.Response:
        if parts in (["api"], ["apis"]):
            version = {"version": "v1alpha1", "groupVersion": "levada.dev/v1alpha1"}
            groups = [{"name": "levada.dev", "versions": [version], "preferredVersion": version}]
            return web.json_response({"versions": ["v1"]} if parts == ["api"] else {"groups": groups})
        prefix = "/" + "/".join(parts)
        verbs = ["create", "delete", "get", "list", "patch", "watch"]
        found = [
            {"name": r.plural, "kind": k, "singularName": k.lower(), "namespaced": True, "verbs": verbs}
            for k, r in RESOURCES.items()
            if r.prefix == prefix
        ]
        status = [{**f, "name": f"{f['name']}/status"} for f in found]
        if prefix == "/api/v1":
            # kopf begins only when it knows of them.
            found.append({"name": "namespaces", "kind": "Namespace", "singularName": "namespace", "namespaced": False,
                          "verbs": verbs})  # fmt: skip
        return web.json_response({"resources": found + status})

    def _list(self, kind: str, selector: str) -> dict[str, Any]:
        with self._lock:
            items = [b for (k, _, _), b in self.objects.items() if k == kind and _selected(b, selector)]
            version = str(self._version)
        bare = [{k: v for k, v in b.items() if k not in ("kind", "apiVersion")} for b in items]
        return {"kind": f"{kind}List", "metadata": {"resourceVersion": version}, "items": bare}

    async def _watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        with self._lock:
            since = int(request.query.get("resourceVersion") or self._version)
            for event in self._events:
                if event["object"]["kind"] == kind and int(event["object"]["metadata"]["resourceVersion"]) > since:
                    queue.put_nowait(event)
            self._watchers.append((kind, queue))
        while True:
            try:
                event = await asyncio.wait_for(queue.get(), 20)
                await asyncio.sleep(self.watch_late_s)
            except TimeoutError:
                metadata = {"resourceVersion": str(self._version)}
                event = {"type": "BOOKMARK", "object": {"kind": kind, "metadata": metadata}}
            await response.write(json.dumps(event).encode() + b"\n")

    def _one(self, request: web.Request, sent: Any, key: tuple[str, str, str], subresource: str) -> web.Response:
        kind, namespace, name = key
        there = self.objects.get(key)
        if request.method == "PATCH":
            if isinstance(sent, list):
                return self._patched(kind, namespace, name, there, sent)
            applied = "apply-patch" in request.headers["Content-Type"]
            if there is None and (not applied or subresource):
                return _failure(404, "not found")
            if "dryRun" in request.query:
                return web.json_response(sent)
            if there is None and kind in self.refused:
                return _failure(403, "being terminated", "NamespaceTerminating")
            if applied and subresource and there is not None:
                if change := self.meanwhile.pop(sent["status"].get("observedGeneration", 0), None):
                    there = self._merge(kind, namespace, name, change)
                # Server-side apply by one manager: what is no longer in it goes.
                return web.json_response(self._store(key, there, {**there, **sent, "metadata": there["metadata"]}))
            if applied:
                self.webhook(sent)
            return web.json_response(self._merge(kind, namespace, name, sent))
        if there is None:
            return _failure(404, "not found")
        if request.method == "DELETE":
            self._delete(kind, namespace, name)
        if request.method == "PUT":
            if sent["metadata"].get("resourceVersion") != there["metadata"]["resourceVersion"]:
                return _failure(409, "the object has been modified")
            return web.json_response(self._store(key, there, sent))
        return web.json_response(there)

    def _created(self, kind: str, namespace: str, body: dict[str, Any]) -> web.Response:
        name = body["metadata"]["name"]
        if (kind, namespace, name) in self.objects:
            return _failure(409, "it exists")
        return web.json_response(self._merge(kind, namespace, name, body), status=201)

    def _patched(
        self, kind: str, namespace: str, name: str, there: dict[str, Any] | None, operations: list[dict[str, Any]]
    ) -> web.Response:
        if there is None:
            return _failure(404, "not found")
        try:
            body = jsonpatch.apply_patch(there, operations)
        except jsonpatch.JsonPatchException:
            return _failure(422, "the object has changed")
        return web.json_response(self._store((kind, namespace, name), there, body))

    def _merge(self, kind: str, namespace: str, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        key = (kind, namespace, name)
        there = self.objects.get(key)
        made = {"uid": f"uid-{kind}-{name}", "creationTimestamp": _now(), "namespace": namespace, "generation": 1}
        body = merge(there or {"apiVersion": "v1", "kind": kind, "metadata": made}, patch)
        return self._store(key, there, body)

    def _store(self, key: tuple[str, str, str], there: dict[str, Any] | None, body: dict[str, Any]) -> dict[str, Any]:
        if there is not None and json.dumps(there, sort_keys=True) == json.dumps(body, sort_keys=True):
            return there
        self._version += 1
        body["metadata"] = {**body["metadata"], "name": key[2], "resourceVersion": str(self._version)}
        if there is not None and there.get("spec") != body.get("spec"):
            body["metadata"]["generation"] = there["metadata"]["generation"] + 1
        self.objects[key] = body
        self._tell("MODIFIED" if there else "ADDED", body)
        if "deletionTimestamp" in body["metadata"] and not body["metadata"].get("finalizers"):
            self._remove(key)
        return body

    def _delete(self, kind: str, namespace: str, name: str) -> None:
        body = self.objects[kind, namespace, name]
        if body["metadata"].get("finalizers"):
            self._merge(kind, namespace, name, {"metadata": {"deletionTimestamp": _now()}})
        else:
            self._remove((kind, namespace, name))

    def _remove(self, key: tuple[str, str, str]) -> None:
        body = self.objects.pop(key, None)
        if body is not None:
            self._version += 1
            self._tell("DELETED", {**body, "metadata": {**body["metadata"], "resourceVersion": str(self._version)}})

    def _tell(self, type_: str, body: dict[str, Any]) -> None:
        event = {"type": type_, "object": body}
        self._events.append(event)
        for kind, queue in self._watchers:
            if kind == body["kind"]:
                self._loop.call_soon_threadsafe(queue.put_nowait, event)


def _selected(body: dict[str, Any], selector: str) -> bool:
    return not selector or selector in (body["metadata"].get("labels") or {})


def _failure(status: int, message: str, cause: str = "") -> web.Response:
    details = {"causes": [{"reason": cause}]} if cause else {}
    return web.json_response({"kind": "Status", "message": message, "details": details, "code": status}, status=status)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
