"""Finding a Java that Spark runs on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from levada.errors import NeedsOperator
from levada.local import java
from levada.local.java import ensure_java, find_java


def install(folder: Path, version: str, exit_code: int = 0) -> Path:
    """Put a command there that tells the version as Java does, on standard error."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\nexit {exit_code}\n")
    command.chmod(0o755)
    return folder


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java; a folder to put some into."""
    monkeypatch.setattr(java, "USUAL_FOLDERS", (f"{tmp_path}/usual/*",))
    monkeypatch.setenv("LEVADA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def test_unsuitable_versions_are_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java 25 in JAVA_HOME and a Java 8 first in PATH are not taken where a Java 17 comes later."""
    monkeypatch.setenv("JAVA_HOME", str(install(bare / "newest", "25.0.3")))
    old, good = install(bare / "old", "1.8.0_402"), install(bare / "good", "17.0.15")
    monkeypatch.setenv("PATH", f"{old}/bin:{good}/bin")
    found = find_java()
    assert found is not None
    assert (found.home, found.version) == (good, 17)


def test_java_home_goes_before_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME is what the user says, so it is asked first."""
    monkeypatch.setenv("JAVA_HOME", str(install(bare / "home", "21.0.2")))
    monkeypatch.setenv("PATH", f"{install(bare / 'path', '17.0.1')}/bin")
    found = find_java()
    assert found is not None
    assert found.home == bare / "home"


def test_links_lead_to_the_home(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link in PATH is followed: the home is where the command really is."""
    real = install(bare / "real", "17.0.15")
    (bare / "bin").mkdir()
    (bare / "bin" / "java").symlink_to(real / "bin" / "java")
    monkeypatch.setenv("PATH", str(bare / "bin"))
    found = find_java()
    assert found is not None
    assert found.home == real


def test_usual_folders_and_the_cache(bare: Path) -> None:
    """Without JAVA_HOME and PATH, a Java in a usual folder is found, else one that was fetched before."""
    fetched = install(bare / "cache" / "java" / "jdk-17", "17.0.9")
    found = find_java()
    assert found is not None
    assert found.home == fetched
    usual = install(bare / "usual" / "java-21", "21")
    found = find_java()
    assert found is not None
    assert found.home == usual


def test_broken_java_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that fails is no Java, whatever version it tells."""
    monkeypatch.setenv("JAVA_HOME", str(install(bare / "broken", "17.0.15", exit_code=1)))
    assert find_java() is None


def test_missing_java_says_what_to_install(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none is found and none can be fetched, the error says what to install, and nothing half-fetched stays."""
    import jdk

    def unreachable(*args: object, **kwargs: object) -> str:
        raise jdk.JdkError("no route to host")

    monkeypatch.setattr(jdk, "install", unreachable)
    with pytest.raises(NeedsOperator) as raised:
        ensure_java()
    assert raised.value.code == "java_missing"
    assert "openjdk-17" in raised.value.hint
    assert [p.name for p in (bare / "cache" / "java").iterdir()] == [".lock"]


def test_fetched_java_lands_in_the_cache(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What install-jdk fetches is moved into the cache whole, and found there from then on."""
    import jdk

    monkeypatch.setattr(jdk, "install", lambda version, jre, path: str(install(Path(path) / "jdk-17.0.15-jre", "17")))
    assert ensure_java().home == bare / "cache" / "java" / "jdk-17.0.15-jre"
    assert find_java() == ensure_java()


def test_this_machine_has_one() -> None:
    """The tests themselves run on a Java that answers."""
    done = subprocess.run([ensure_java().executable, "-version"], capture_output=True, text=True, check=True)
    assert "version" in done.stderr
