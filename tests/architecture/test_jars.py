"""The list of the image's jars, which the nightly scan for known vulnerabilities reads."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import version

from tests.architecture.jar_list import document, spark_files
from tests.architecture.language import ROOT

LIST = ROOT / "requirements" / "jars.cdx.json"


def test_the_list_is_up_to_date() -> None:
    """It is that of the image's pyspark. If not: python -m tests.architecture.jar_list > requirements/jars.cdx.json."""
    assert f"\npyspark=={version('pyspark')} " in (ROOT / "requirements" / "image.txt").read_text()
    assert LIST.read_text() == document()


def test_the_list_has_every_jar_and_no_other() -> None:
    """Each jar of pyspark that the Dockerfile keeps, and each of a jars.toml, has a component by its name."""
    components = json.loads(LIST.read_text())["components"]
    named = [
        "-".join([c["name"], c["version"], *re.findall(r"classifier=([^&]+)", c["purl"])]) + ".jar" for c in components
    ]
    own = [
        f"{jar['module']}-{jar['version']}.jar"
        for file in (ROOT / "engine" / "levada" / "destinations").glob("*/jars.toml")
        for jar in tomllib.loads(file.read_text())["jar"]
    ]
    assert sorted(named) == sorted([file.name for file in spark_files()] + own)
    assert len(own) == 3


def test_each_exception_has_a_reason_and_an_end() -> None:
    """A vulnerability is only ignored with a reason, and until a day."""
    ignored = tomllib.loads((ROOT / "requirements" / "osv-scanner.toml").read_text()).get("IgnoredVulns", [])
    assert [v for v in ignored if not v.get("reason") or "ignoreUntil" not in v or not v.get("id")] == []
