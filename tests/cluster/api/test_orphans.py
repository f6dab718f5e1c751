"""The list of what deleted Pipelines may have left, as ``levada orphans`` and the operator's own pod print it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.cluster.api.pipelines import shop, sql, streaming
from tests.cluster.api.processes import ROOT, FakeDriver, Operator, make_pod
from tests.cluster.kubectl import PATIENCE, Kubectl, eventually


def orphans(kubectl: Kubectl, *options: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run ``levada orphans`` for the operator of this namespace."""
    command = [sys.executable, "-m", "levada", "orphans", "-n", kubectl.namespace, *options]
    return subprocess.run(command, capture_output=True, text=True, check=check)


def in_the_pod(kubectl: Kubectl, *options: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run what an image of the operator alone has: no package that it lacks can be imported."""
    lacking = ("typer", "rich", "pyarrow", "psycopg", "kubernetes")
    program = (
        f"import sys\nfor name in {lacking}: sys.modules[name] = None\n"
        f"sys.argv[1:] = ['orphans', *{list(options)}]\n"
        "import runpy\nrunpy.run_module('levada_operator', run_name='__main__')"
    )
    environment = os.environ | {"POD_NAMESPACE": kubectl.namespace}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=check, env=environment, cwd=ROOT
    )


def listed(kubectl: Kubectl) -> list[dict[str, str]]:
    """Return the entries."""
    found: list[dict[str, str]] = json.loads(orphans(kubectl, "-o", "json").stdout)["orphans"]
    return found


def test_a_skipped_clean_up_is_listed(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """Its slot is listed when its Event is gone, also within the operator's pod, until it is taken off."""
    streaming(kubectl, driver)
    kubectl("annotate", "pipeline", "shop", "levada.dev/skip-cleanup=true")
    kubectl("delete", "pipeline", "shop", PATIENCE)
    eventually(lambda: operator.metrics().get("levada_operator_abandoned_cleanups") == 1)
    (orphan,) = listed(kubectl)
    assert (orphan["namespace"], orphan["pipeline"]) == (kubectl.namespace, "shop")
    assert sql(kubectl) in orphans(kubectl).stdout
    assert sql(kubectl) in in_the_pod(kubectl).stdout
    for run in (orphans, in_the_pod):
        unknown = run(kubectl, "--forget", "another", check=False)
        assert (unknown.returncode, "orphan_unknown" in unknown.stderr) == (1, True)
    assert "nothing is listed" in in_the_pod(kubectl, "--forget", orphan["uid"]).stdout
    assert "nothing is listed" in orphans(kubectl).stdout
    eventually(lambda: operator.metrics().get("levada_operator_abandoned_cleanups") == 0)


def test_an_entry_is_taken_off(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """By `levada orphans`, outside of the cluster."""
    streaming(kubectl, driver)
    kubectl("annotate", "pipeline", "shop", "levada.dev/skip-cleanup=true")
    kubectl("delete", "pipeline", "shop", PATIENCE)
    (orphan,) = eventually(lambda: listed(kubectl))
    assert "nothing is listed" in orphans(kubectl, "--forget", orphan["uid"]).stdout
    assert not listed(kubectl)


def test_a_finalizer_that_is_removed_by_hand(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """The Pipeline goes before its clean-up, and its slot is listed."""
    streaming(kubectl, driver)
    uid = kubectl.get("pipeline", "shop")["metadata"]["uid"]
    kubectl("delete", "pipeline", "shop", "--wait=false")
    kubectl.patch("pipeline", "shop", {"metadata": {"finalizers": None}})
    eventually(lambda: kubectl.get("pipeline", "shop") is None)
    (orphan,) = eventually(lambda: listed(kubectl))
    assert (orphan["uid"], sql(kubectl) in orphan["message"]) == (uid, True)
    assert "finalizer was removed by hand" in orphan["message"]


def test_what_was_taken_over_is_not_listed(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """The SQL of an entry would drop the slot of the Pipeline that took it over. Its own deletion removes it."""
    streaming(kubectl, driver)
    former = kubectl.get("pipeline", "shop")["metadata"]["uid"]
    kubectl("annotate", "pipeline", "shop", "levada.dev/skip-cleanup=true")
    kubectl("delete", "pipeline", "shop", PATIENCE)
    eventually(lambda: former in orphans(kubectl).stdout)
    kubectl.run("delete", "pod", "shop-driver-0", "--force", "--grace-period=0", check=False)
    heir = shop()
    heir["metadata"]["annotations"] = {"levada.dev/take-over-from": former}
    kubectl.apply(heir)
    make_pod(kubectl, driver.address)
    kubectl("wait", "--for=condition=Ready", "pipeline/shop", PATIENCE)
    eventually(lambda: "nothing is listed" in orphans(kubectl).stdout)
