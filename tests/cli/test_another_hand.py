"""Commands and requests with the manifest of another Pipeline, which change nothing of the owner's."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.command_line import replicated
from tests.rigs.config_maps import ConfigMapsInMemory
from tests.rigs.database import Database
from tests.rigs.owners import Side, slots
from tests.rigs.waiting import LIMIT_S

from levada.errors import NeedsOperator
from levada.runtime.host.table_requests import resync_tables, retry_tables
from levada.runtime.report.cuts_api import CutsApi
from levada.runtime.report.http import REQUESTER, ProgressServer
from levada.runtime.report.verifications import Verifications
from levada.spec import load_manifests
from levada.stores import config_map_client
from levada.stores.phases import Errored, RetryPolicy
from levada.values import PipelineOwner, TableId

COMMANDS = (
    ("resync", "orders"),
    ("resync", "--all"),
    ("retry", "orders"),
    ("retry", "--all"),
    ("verify",),
    ("verify", "--repair"),
    ("cut", "month_end"),
    ("cut", "month_end", "--drop"),
    ("cleanup", "--yes"),
    ("takeover", "--from", "uid-3", "--yes"),
)
ERRORED = Errored("unrepresentable", "reason", "solution", RetryPolicy.MANUAL_RETRY)

Content = Callable[[], object]


@pytest.fixture(params=["source", "postgres", "config-map"])
def store(request: pytest.FixtureRequest, db: Database, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Content]:
    """A place of state, as the manifest names it, and a function that returns all its content."""
    if request.param == "config-map":
        maps = ConfigMapsInMemory("a")
        monkeypatch.setattr(config_map_client, "ConfigMaps", lambda _: maps)
        return {"configMap": {}}, lambda: dict(maps.content)
    schema = "levada"
    spec: dict[str, Any] = {}
    if request.param == "postgres":
        schema = "states"
        place = {"host": "127.0.0.1", "port": db.server.port, "database": db.name, "tls": {"mode": "Disable"}}
        spec = {"connection": {**place, "credentialsSecretRef": {"name": "shop-cdc"}}, "schema": schema}
    return {"postgres": spec}, lambda: [
        db.query(f"SELECT * FROM {schema}.{table} ORDER BY 1, 2") for table in ("documents", "pipelines", "epochs")
    ]


@pytest.mark.sampled
def test_no_command_changes_what_another_pipeline_owns(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: tuple[Any, Content]
) -> None:
    """Each is refused before it changes state, slot, publication or staged changes. So is each from a laptop."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    place, content = store
    spec: dict[str, Any] = {
        "destination": replicated(db)["spec"]["destination"],
        "store": place,
        "staging": {"uri": f"file://{tmp_path}/staging"},
    }
    names = {"slot": {"name": "s"}, "publication": {"name": "p"}}
    owner = Side(db, tmp_path, "a", "uid-1", source=names, **spec)
    owner.begin(staged=100)
    [(oid,)] = db.query("SELECT 'orders'::regclass::oid::int8")
    with owner.opened() as (_, state):
        state.next_epoch()
        state.update_table_replication_states({TableId(oid): ERRORED})

    def everything() -> object:
        files = sorted(f.name for f in (tmp_path / "staging").rglob("*"))
        comments = db.query("SELECT pubname, obj_description(oid) FROM pg_publication")
        schemas = db.query("SELECT nspname FROM pg_namespace ORDER BY 1")
        return content(), files, comments, schemas, slots(db)

    before = everything()
    strangers = [Side(db, tmp_path, "b", "uid-2", source=names, **spec)]
    strangers.append(Side(db, tmp_path, "a", "", source=names, **spec))
    for stranger in strangers:
        for command in COMMANDS:
            done = stranger.on(monkeypatch, *command)
            assert (done.exit_code, "[not_the_owner]" in done.stderr) == (1, True), (command, done.output)
            assert everything() == before, command
        manifests = load_manifests(stranger.path.read_text())
        for request in (resync_tables, retry_tables):
            with pytest.raises(
                NeedsOperator, match=r"belongs to (Pipeline a/shop|a Pipeline of another namespace \(UID uid-1\))"
            ):
                request(manifests, secrets=stranger.path.parent / "secrets")
    said = strangers[1].on(monkeypatch, "resync", "--all").stderr
    assert "kubectl -n a exec shop-driver-0 -- levada" in " ".join(said.split())
    db.query("SELECT pg_drop_replication_slot('s')")
    checked = json.loads(strangers[0].on(monkeypatch, "check", "-o", "json").stdout)["problems"]
    assert checked[0]["code"] == "not_the_owner"
    assert not any("resync MANIFEST --all" in problem["hint"] for problem in checked)
    assert owner.on(monkeypatch, "resync", "orders").exit_code == 0


def test_an_engine_refuses_a_request_for_another_pipeline() -> None:
    """A work folder may be that of another Pipeline of the same name. Neither a cut nor a verification begins there."""
    begun: list[object] = []
    owner = PipelineOwner("uid-1", "a/shop")
    verifications = Verifications(lambda *arguments: begun.append(arguments))  # type: ignore[func-returns-value,arg-type]
    cuts = CutsApi(list, lambda *arguments: begun.append(arguments), begun.append)
    requests = (
        ("POST", "/v1/cuts", {"name": "month_end"}),
        ("DELETE", "/v1/cuts/month_end", {}),
        ("POST", "/v1/verifications", {"tables": ["a.b"], "repair": True}),
        ("DELETE", "/v1/verifications/1", {}),
    )
    with ProgressServer(lambda: None, verifications=verifications, cuts=cuts, owner=lambda: owner) as server:
        for method, path, body in requests:
            headers = {"Content-Type": "application/json", REQUESTER: "uid-2"}
            request = urllib.request.Request(server.address + path, json.dumps(body).encode(), headers, method=method)
            with pytest.raises(urllib.error.HTTPError, match="409") as refused:
                urllib.request.urlopen(request, timeout=LIMIT_S)
            assert json.load(refused.value)["error"]["code"] == "not_the_owner"
        assert begun == []
        headers[REQUESTER] = owner.uid
        own = urllib.request.Request(server.address + "/v1/cuts", b'{"name": "x"}', headers)
        with urllib.request.urlopen(own, timeout=LIMIT_S) as answer:
            assert answer.status == 202
    assert begun == [("x", False)]
