"""A server in Java: its jars by Ivy, as the engine's are fetched, and its process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.servers.ports import wait_for_port

from levada.local.jars import cache_folder, only_process, pyspark_folder
from levada.local.java import require_java

_MODULE: Final = """
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="levada.dev" module="tests"/>
  <dependencies>{}</dependencies>
</ivy-module>
"""
_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def fetched(name: str, dependencies: str) -> list[Path]:
    """Return the jars of a module's dependencies in Ivy's descriptor. ``name`` is their folder in the cache."""
    folder = cache_folder() / "tests" / name
    with only_process(folder.parent) as scratch:
        if not folder.exists():
            (scratch / "ivy.xml").write_text(_MODULE.format(dependencies))
            ivy = next((pyspark_folder() / "jars").glob("ivy-*.jar"))
            named = os.environ.get("LEVADA_IVY_SETTINGS")
            command = [require_java().executable, "-jar", ivy, *(("-settings", named) if named else ())]
            command += ["-ivy", scratch / "ivy.xml", "-cache", scratch / "ivy", "-confs", "default"]
            command += [
                "-types",
                "jar",
                "bundle",
                "-retrieve",
                f"{scratch}/jars/[artifact]-[revision](-[classifier]).[ext]",
            ]
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            (scratch / "jars").replace(folder)
    return sorted(folder.iterdir())


@contextmanager
def serving(
    log: Path,
    port: int,
    jars: Sequence[Path],
    main: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    heap: str = "256m",
    address: str = "127.0.0.1",
) -> Iterator[None]:
    """Run a class's main from these jars, once it answers at the address and port."""
    command = [
        require_java().executable,
        f"-Xmx{heap}",
        *_OPTIONS,
        "-cp",
        os.pathsep.join(map(str, jars)),
        main,
        *arguments,
    ]
    with (
        log.open("wb") as out,
        subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **(environment or {})}) as process,
    ):
        try:
            wait_for_port(process, port, log, address)
            yield
        finally:
            process.kill()
