"""Debian's Prometheus and its promtool. Root installs them where they are missing. Anyone else skips the test then."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.rigs.waiting import LIMIT_S
from tests.servers.debian import install
from tests.servers.ports import free_port

from levada.local.jars import cache_folder, only_process

_PACKAGES = {"prometheus": "/usr/bin/prometheus"}


def ensure_program(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        with only_process(cache_folder() / "prometheus"):
            install(_PACKAGES)
    path = shutil.which(name)
    if path is None:
        pytest.skip("Prometheus is missing: apt-get install prometheus")
    return path


def promtool(*arguments: str | Path) -> None:
    """Run promtool. Raise AssertionError with what it prints if it fails."""
    command = [ensure_program("promtool"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def prometheus(folder: Path, rules: list[dict[str, Any]], target: str) -> Iterator[str]:
    """Run a server that scrapes the target and evaluates the rules twice a second. Yield its address."""
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "rules", "rules": rules}]}))
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "levada", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = [
        ensure_program("prometheus"),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            yield f"http://{address}"
        finally:
            server.terminate()


def ask(address: str, path: str) -> Any:
    """Return the data of an answer, or None if the server does not answer yet."""
    try:
        with urllib.request.urlopen(f"{address}/api/v1/{path}", timeout=LIMIT_S) as answer:
            return json.load(answer)["data"]
    except (urllib.error.URLError, OSError):
        return None
