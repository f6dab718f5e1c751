"""The check of a release, and the base of its images."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def release() -> ModuleType:
    """The script that checks a tag."""
    spec = importlib.util.spec_from_file_location("release", ROOT / ".github" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("own_process")
def test_a_release_pins_the_base_image() -> None:
    """Each image of a release is built from the base that one look-up has given, and says so in a label."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]["image"]
    builds = [step["with"]["build-args"] for step in job["steps"] if "build-push-action" in step.get("uses", "")]
    assert len(builds) == 2
    assert all("BASE_IMAGE=${{ env.BASE_IMAGE }}" in arguments for arguments in builds)
    [found] = [step["run"] for step in job["steps"] if "BASE_IMAGE=" in step.get("run", "")]
    [look_up] = [line.strip() for line in found.splitlines() if "sed" in line]
    base = subprocess.run(
        ["bash", "-c", f"{look_up}; echo $base"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert base.stdout == "debian:bookworm-slim\n"
    assert dockerfile.count('org.opencontainers.image.base.name="${BASE_IMAGE}"') == len(builds)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of version 1.2.0."""
    (tmp_path / "charts" / "levada").mkdir(parents=True)
    (tmp_path / "charts" / "levada" / "Chart.yaml").write_text('version: 1.2.0\nappVersion: "1.2.0"\n')
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n- later\n\n## [1.2.0] - 2027-01-02\n\n- new\n\n## [1.1.0]\n\n- old\n"
    )
    return tmp_path


def test_release_has_one_version_and_its_notes(repository: Path) -> None:
    """A tag is released if the package, the chart and the changelog have its version. Its notes are that section."""
    script = release()
    assert script.problems("v1.2.0", repository) == []
    assert script.notes("1.2.0", repository) == "- new"
    assert len(script.problems("v1.3.0", repository)) == 4
    # A section is found by its whole number.
    assert script.notes("1.2", repository) == ""
    assert script.notes("1.1.0", repository) == "- old"


def test_this_version_is_the_same_everywhere() -> None:
    """The package and the chart of these sources have one version."""
    script = release()
    version = importlib.import_module("levada").__version__
    assert [p for p in script.problems(f"v{version}") if "CHANGELOG" not in p] == []
