"""The jars' cache: Ivy as pyspark ships it, with a repository in a folder of this machine."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.rigs.waiting import LIMIT_S

from levada.errors import NeedsOperator
from levada.local.jars import Jar, ensure_jars, missing_jars, read_bundle, trust_options, write_bundle
from levada.local.java import find_java

pytestmark = pytest.mark.usefixtures("own_jvm")

CONTENT = b"PK\x03\x04 no class in it" * 1000
JAR = Jar("org.example", "lib", "1.0", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())

SETTINGS = """
<ivysettings>
  <settings defaultResolver="folder"/>
  <resolvers>
    <filesystem name="folder" m2compatible="true">
      <artifact pattern="{}/[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"/>
    </filesystem>
  </resolvers>
</ivysettings>
"""

FETCH = """
from levada.local.jars import Jar, ensure_jars
from levada.local.java import find_java
print(ensure_jars([Jar({!r}, {!r}, {!r}, {!r}, {!r})])[0])
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a repository that has the jar."""
    published = tmp_path / "repository" / "org" / "example" / "lib" / "1.0" / "lib-1.0.jar"
    published.parent.mkdir(parents=True)
    published.write_bytes(CONTENT)
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(SETTINGS.format(tmp_path / "repository"))
    monkeypatch.setenv("LEVADA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LEVADA_IVY_SETTINGS", str(settings))
    return tmp_path / "cache" / "jars"


def fill(cache: Path) -> None:
    """Put the jar into the cache, as a download does."""
    cache.mkdir(parents=True)
    (cache / JAR.file_name).write_bytes(CONTENT)


def test_jar_is_fetched_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A jar is fetched at its first use. Afterwards no repository is needed."""
    assert ensure_jars([JAR]) == (cache / "lib-1.0.jar",)
    assert (cache / "lib-1.0.jar").read_bytes() == CONTENT
    monkeypatch.setenv("LEVADA_IVY_SETTINGS", "/nowhere")
    assert ensure_jars([JAR]) == (cache / "lib-1.0.jar",)


def test_partly_filled_cache_is_mended(cache: Path) -> None:
    """A file that was cut short, and what a killed process left, do no harm."""
    cache.mkdir(parents=True)
    (cache / "lib-1.0.jar").write_bytes(CONTENT[:100])
    (cache / ".fetching").mkdir()
    assert ensure_jars([JAR])[0].read_bytes() == CONTENT


def test_other_bytes_are_refused(cache: Path) -> None:
    """A jar whose checksum is another is an error, and does not come into the cache."""
    with pytest.raises(NeedsOperator) as raised:
        ensure_jars([Jar("org.example", "lib", "1.0", len(CONTENT), "0" * 64)])
    assert raised.value.code == "jar_checksum"
    assert [p.name for p in cache.iterdir()] == [".lock"]


def test_missing_jar_says_where_to_put_it(cache: Path) -> None:
    """A jar that no repository has is an error that names the file and the setting for a mirror."""
    with pytest.raises(NeedsOperator) as raised:
        ensure_jars([Jar("org.example", "gone", "2.0", 1, "0" * 64)])
    assert raised.value.code == "jar_unavailable"
    assert "levada setup --from-bundle FILE" in raised.value.hint
    assert str(cache / "gone-2.0.jar") in raised.value.hint
    assert "LEVADA_IVY_SETTINGS" in raised.value.hint


def test_two_processes_at_once(cache: Path) -> None:
    """Two processes that fill the cache at the same time both find it filled and right."""
    script = FETCH.format(JAR.organisation, JAR.module, JAR.version, JAR.bytes, JAR.sha256)
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(2)
    ]
    assert {p.communicate(timeout=LIMIT_S)[0].strip() for p in processes} == {str(cache / "lib-1.0.jar")}
    assert all(p.returncode == 0 for p in processes)
    assert (cache / "lib-1.0.jar").read_bytes() == CONTENT


def test_bundle_fills_another_cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle fills an empty cache without any repository, and the downloaded bytes are reported on the way."""
    counts: list[int] = []
    ensure_jars([JAR], lambda jar, count: counts.append(count))
    assert all(0 <= count <= JAR.bytes for count in counts)
    write_bundle([JAR], tmp_path / "bundle.tar")
    monkeypatch.setenv("LEVADA_CACHE", str(tmp_path / "offline"))
    monkeypatch.setenv("LEVADA_IVY_SETTINGS", "/nowhere")
    assert missing_jars([JAR]) == (JAR,)
    read_bundle([JAR], tmp_path / "bundle.tar")
    assert missing_jars([JAR]) == ()
    assert ensure_jars([JAR])[0].read_bytes() == CONTENT


@pytest.mark.sampled
@pytest.mark.parametrize("damage", ["text", "other jar", "cut short", "link"])
def test_unusable_bundle_is_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """A file that is no bundle, lacks a jar, was cut short or has a link in its place changes nothing in the cache."""
    file = tmp_path / "bundle.tar"
    fill(cache)
    write_bundle([JAR], file)
    wanted = JAR
    match damage:
        case "text":
            file.write_text("no archive")
        case "cut short":
            file.write_bytes(file.read_bytes()[:4000])
        case "other jar":
            wanted = Jar("org.example", "lib", "2.0", len(CONTENT), JAR.sha256)
        case "link":
            with tarfile.open(file, "w") as archive:
                link = tarfile.TarInfo(JAR.file_name)
                link.type, link.linkname = tarfile.SYMTYPE, str(cache / JAR.file_name)
                archive.addfile(link)
    monkeypatch.setenv("LEVADA_CACHE", str(tmp_path / "offline"))
    with pytest.raises(NeedsOperator) as raised:
        read_bundle([wanted], file)
    assert raised.value.code == "bundle_unusable"
    assert list((tmp_path / "offline").rglob("*.jar")) == []


def test_a_bundle_is_read_also_where_nothing_is_missing(cache: Path, tmp_path: Path) -> None:
    """A file that is no bundle is reported before it is carried to another machine."""
    fill(cache)
    (tmp_path / "bad.tar").write_text("no archive")
    for file in ("bad.tar", "nothing.tar"):
        with pytest.raises(NeedsOperator) as raised:
            read_bundle([JAR], tmp_path / file)
        assert raised.value.code == "bundle_unusable"


def test_a_bundle_in_a_folder_that_does_not_exist(cache: Path, tmp_path: Path) -> None:
    """The error has the file and the reason."""
    fill(cache)
    with pytest.raises(NeedsOperator) as raised:
        write_bundle([JAR], tmp_path / "nowhere" / "bundle.tar")
    assert raised.value.code == "bundle_unwritable"
    assert "No such file or directory" in raised.value.message


def test_certificates_of_the_variable_stay_in_effect() -> None:
    """The build of the image names a trust store by JAVA_TOOL_OPTIONS, which the machine's own must not override."""
    assert trust_options("-Xmx1g -Djavax.net.ssl.trustStore=/run/trust.jks") == []
    assert len(trust_options("-Xmx1g")) <= 1


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the folder, the reason and the variable that names another folder."""
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("LEVADA_CACHE", str(tmp_path / "file"))
    with pytest.raises(NeedsOperator) as raised:
        ensure_jars([JAR])
    assert raised.value.code == "cache_unwritable"
    assert str(tmp_path / "file") in raised.value.message
    assert "LEVADA_CACHE" in raised.value.hint


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user ID is often one that the machine does not know."""
    for name in ("LEVADA_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(NeedsOperator) as raised:
        missing_jars([JAR])
    assert raised.value.code == "cache_unwritable"
    assert find_java(("~/java-*",)) == find_java(())
