"""The image, the chart and the operator agree about what the pods are."""

from __future__ import annotations

import re
from pathlib import Path

from tests.chart.helm import pods, render

from levada_operator.desired.pod import WORK_DIR
from levada_operator.desired.security import USER

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_user(tmp_path: Path) -> None:
    """The user of the image is the one that pods run as: it has a name there, which Hadoop asks for."""
    assert f"\nUSER {USER}:{USER}\n" in DOCKERFILE
    assert f"useradd --uid {USER} --gid {USER}" in DOCKERFILE
    assert {spec["securityContext"]["runAsUser"] for spec in pods(render(tmp_path))} == {USER}


def test_work_folder() -> None:
    """The image's home is the folder that the operator mounts a volume at."""
    assert f"HOME={WORK_DIR} " in DOCKERFILE
    assert f"install -d -o {USER} -g {USER} -m 0775 {WORK_DIR}" in DOCKERFILE


def test_what_is_copied_is_let_through() -> None:
    """.dockerignore lets through whatever the Dockerfile copies, and nothing else."""
    copied = {
        path.split("/")[0]
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for path in line.removeprefix("--chmod=0755 ").split()[:-1]
    }
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == let_through


def test_nothing_of_a_builder_is_in_it() -> None:
    """The Dockerfile names no host and no certificate. The machine that builds knows its sources of packages."""
    assert not re.search(r"https?://|index-url|trusted-host|/etc/pip", DOCKERFILE)
    assert len(re.findall(r"install .*--require-hashes|wheel .*--require-hashes", DOCKERFILE)) == 3
