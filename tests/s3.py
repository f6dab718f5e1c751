"""An object store that speaks S3: S3Proxy over a folder, from Maven, on loopback."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from levada.local.cache import cache_folder, only_process
from levada.local.jars import pyspark_folder
from levada.local.java import ensure_java

BUCKET: Final = "lake"
REGION: Final = "us-east-1"
_ID, _SECRET = "levada", "only-a-test"

_VERSION: Final = "4.1.0"
_SHA256: Final = "a4d025969aaf796616ed4b1e2491d87d455ce84bb28cb9db086b2e6aaa68b48d"
_IVY: Final = f"""
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="levada.dev" module="tests"/>
  <dependencies>
    <dependency org="org.gaul" name="s3proxy" rev="{_VERSION}" transitive="false">
      <artifact name="s3proxy" type="jar" ext="jar" m:classifier="jar-with-dependencies"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
_SETTINGS: Final = """
s3proxy.endpoint=http://127.0.0.1:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={identity}
s3proxy.credential={credential}
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={folder}
"""


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A running store with the bucket `BUCKET`, empty at first."""

    port: int

    @property
    def properties(self) -> dict[str, str]:
        """What a catalog is told of it, by Iceberg's names; PyIceberg's are the same."""
        return {
            "s3.endpoint": f"http://127.0.0.1:{self.port}",
            "s3.path-style-access": "true",
            "s3.access-key-id": _ID,
            "s3.secret-access-key": _SECRET,
            "client.region": REGION,
        }

    @property
    def environment(self) -> dict[str, str]:
        """By which every client of AWS finds who it is."""
        return {"AWS_ACCESS_KEY_ID": _ID, "AWS_SECRET_ACCESS_KEY": _SECRET, "AWS_REGION": REGION}

    def uri(self, path: str) -> str:
        """Return a path in the bucket as Arrow's file systems have it."""
        return f"s3://{BUCKET}/{path}?scheme=http&endpoint_override=127.0.0.1:{self.port}&region={REGION}"


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """Run a store over a folder."""
    (folder / "buckets" / BUCKET).mkdir(parents=True)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = int(s.getsockname()[1])
    settings = folder / "s3proxy.properties"
    settings.write_text(_SETTINGS.format(port=port, identity=_ID, credential=_SECRET, folder=folder / "buckets"))
    options = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    command = [ensure_java().executable, *options, "-jar", _program(), "--properties", settings]
    with (folder / "s3proxy.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _wait(process, port, folder / "s3proxy.log")
            yield ObjectStore(port)
        finally:
            process.kill()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"S3Proxy does not answer:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.1)


def _program() -> Path:
    """Return the server's jar, fetched by Ivy as the engine's jars are: by a descriptor, as it has a classifier."""
    jar = cache_folder() / "tests" / f"s3proxy-{_VERSION}.jar"
    with only_process(jar.parent) as scratch:
        if not jar.exists():
            (scratch / "ivy.xml").write_text(_IVY)
            ivy = next((pyspark_folder() / "jars").glob("ivy-*.jar"))
            named = os.environ.get("LEVADA_IVY_SETTINGS")
            command = [ensure_java().executable, "-jar", ivy, *(("-settings", named) if named else ())]
            command += ["-ivy", scratch / "ivy.xml", "-cache", scratch / "ivy"]
            command += ["-retrieve", f"{scratch}/[artifact].[ext]"]
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
            fetched = scratch / "s3proxy.jar"
            assert fetched.exists(), done.stdout + done.stderr
            assert hashlib.sha256(fetched.read_bytes()).hexdigest() == _SHA256
            fetched.replace(jar)
    return jar
