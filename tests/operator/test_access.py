"""The service accounts of a Pipeline's pods, the peers that may reach the pods, and the token that they need."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.operator.samples import DEFAULTS, observed, owner, pipeline

from levada_operator.app.config import read_config
from levada_operator.app.fetch import Answer, DriverClient
from levada_operator.decide.acceptance import accept
from levada_operator.desired.jobs import build_cleanup_job, build_lag_job
from levada_operator.desired.objects import build_objects

TOKEN = {"driver": {"tokenSecretRef": {"name": "driver-token", "key": "token"}}}


def objects(kind: str, **changes: Any) -> dict[str, dict[str, Any]]:
    """Return the objects of a kind by their name."""
    return {b["metadata"]["name"]: b for b in build_objects(owner(**changes), running=True) if b["kind"] == kind}


def executor(**changes: Any) -> dict[str, Any]:
    """Return the executors' pod template."""
    data = objects("ConfigMap", driver={"mode": "Cluster", **changes})["shop-manifest"]["data"]
    return dict(yaml.safe_load(data["executor.yaml"]))


def test_annotations_of_the_accounts() -> None:
    """An annotation for the cloud's role is on the accounts of the driver and of the executors: both reach the lake."""
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/lake"}
    found = objects("ServiceAccount", driver={"mode": "Cluster", "serviceAccount": {"annotations": role}})
    assert {name: b["metadata"]["annotations"] for name, b in found.items()} == {
        "shop-driver": role,
        "shop-executor": role,
    }


def test_account_of_the_users() -> None:
    """With a name no account is made: driver, Jobs and executors have that one, and it gets the driver's rights."""
    changes: dict[str, Any] = {"driver": {"mode": "Cluster", "serviceAccount": {"name": "lake-writer"}}}
    assert not objects("ServiceAccount", **changes)
    one = owner(**changes)
    templates = [
        objects("StatefulSet", **changes)["shop-driver"]["spec"]["template"],
        *(job["spec"]["template"] for job in (build_lag_job(one, 1), build_cleanup_job(one))),
        executor(serviceAccount={"name": "lake-writer"}),
    ]
    assert {t["spec"]["serviceAccountName"] for t in templates} == {"lake-writer"}
    subjects = objects("RoleBinding", **changes)["shop-driver"]["subjects"]
    assert subjects == [{"kind": "ServiceAccount", "name": "lake-writer", "namespace": "data"}]
    properties = objects("ConfigMap", **changes)["shop-manifest"]["data"]["spark.properties"]
    assert "spark.kubernetes.authenticate.executor.serviceAccountName lake-writer\n" in properties


def test_executors_never_have_a_token_for_the_api_server() -> None:
    """Also with the driver's account: the driver's token is mounted into the driver alone."""
    assert executor(serviceAccount={"name": "lake-writer"})["spec"]["automountServiceAccountToken"] is False
    assert executor()["spec"]["serviceAccountName"] == "shop-executor"


def test_spark_authenticates_its_executors() -> None:
    """In mode Cluster no process without the driver's secret joins its Spark."""
    properties = objects("ConfigMap", driver={"mode": "Cluster"})["shop-manifest"]["data"]["spark.properties"]
    assert "spark.authenticate true\n" in properties


def test_executors_are_reached_by_their_own_spark_alone() -> None:
    """Only the Pipeline's driver, copies and executors may open a connection to an executor, and these to a copy."""
    assert set(objects("NetworkPolicy")) == {"shop-driver"}
    policies = objects("NetworkPolicy", driver={"mode": "Cluster"})
    policy, copies = policies["shop-executor"]["spec"], policies["shop-copies"]["spec"]
    label, role = "levada.dev/pipeline", "levada.dev/role"
    assert policy["podSelector"]["matchLabels"] == {label: "shop", role: "executor"}
    (rule,) = policy["ingress"]
    allowed = [peer["podSelector"]["matchLabels"] for peer in rule["from"]]
    assert allowed == [{label: "shop", role: name} for name in ("driver", "copy", "executor")]
    assert copies["podSelector"]["matchLabels"] == {label: "shop", role: "copy"}
    (peer,) = (peer for rule in copies["ingress"] for peer in rule["from"])
    assert peer["podSelector"]["matchLabels"] == {label: "shop", role: "executor"}


def test_token_is_mounted_and_needs_the_operators() -> None:
    """The driver has the Secret. An operator without a token says so before the driver stops answering it."""
    template = objects("StatefulSet", **TOKEN)["shop-driver"]["spec"]["template"]["spec"]
    assert "driver-token" in [v.get("secret", {}).get("secretName") for v in template["volumes"]]
    seen = observed(pipeline(spec=TOKEN))
    condition = accept(seen).condition
    assert (condition.status, condition.reason) == (False, "InvalidSpec")
    assert "driverToken.secretName" in condition.message
    has = replace(DEFAULTS, has_driver_token=True)
    assert accept(replace(seen, defaults=has)).condition.status is True


@pytest.fixture
def driver() -> Iterator[tuple[str, int]]:
    """A driver that answers one token alone."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.headers.get("Authorization") == "Bearer sesame" else 401)
            self.end_headers()
            self.wfile.write(b'{"pipeline": "shop"}')

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield "127.0.0.1", server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def test_operator_reads_with_its_token(driver: tuple[str, int], tmp_path: Path) -> None:
    """A namespace's token is read for each request, and sent to its drivers alone. A refusal says what to do."""

    def fetched(namespace: str = "data", tokens: Path | None = tmp_path) -> Answer:
        async def fetch() -> Answer:
            return await DriverClient(tokens).fetch(namespace, *driver)

        return asyncio.run(fetch())

    (tmp_path / "data").write_text("sesame\n")
    assert fetched().data == b'{"pipeline": "shop"}'
    assert not fetched("other").data
    (tmp_path / "data").write_text("changed")
    assert "must have the same value" in fetched().refused
    (tmp_path / "data").unlink()
    assert not fetched().data
    assert not fetched(tokens=None).data


def test_operators_settings(tmp_path: Path) -> None:
    """The chart's values reach the operator by its environment."""
    environment = {"LEVADA_DRIVER_TOKENS": str(tmp_path / "token"), "LEVADA_UPDATES": "3", "POD_NAMESPACE": "sys"}
    config = read_config(environment | {"LEVADA_LEASE": "sync-operator", "LEVADA_UPDATE_SECONDS": "900"})
    assert config.driver_tokens == tmp_path / "token"
    assert config.defaults.has_driver_token
    assert config.defaults.updates.max_concurrent == 3
    assert config.defaults.updates.deadline.total_seconds() == 900
    assert config.lease == ("sys", "sync-operator")
    assert not read_config({}).defaults.has_driver_token
