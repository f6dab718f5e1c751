"""The list of the image's jars in the format CycloneDX, which scanners read: requirements/jars.cdx.json.

Run ``python -m tests.lint.jar_list > requirements/jars.cdx.json`` after a change of pyspark or of a jars.toml.
Coordinates come from the Maven properties in each jar. Jars without any are in `GROUPS`. The Python package py4j has
the jar of the same coordinates as pyspark's. The parts of Java itself are none of Maven's.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.lint.tree import ROOT, Tree

from levada.local.jars import pyspark_folder

GROUPS: Final = {
    "RoaringBitmap": "org.roaringbitmap",
    "arpack_combined_all": "net.sourceforge.f2j",
    "chill": "com.twitter",
    "chill-java": "com.twitter",
    "derby": "org.apache.derby",
    "derbyshared": "org.apache.derby",
    "derbytools": "org.apache.derby",
    "hadoop-client-runtime": "org.apache.hadoop",
    "ivy": "org.apache.ivy",
    "jackson-module-scala": "com.fasterxml.jackson.module",
    "jdo-api": "javax.jdo",
    "json4s-ast": "org.json4s",
    "json4s-core": "org.json4s",
    "json4s-jackson": "org.json4s",
    "json4s-jackson-core": "org.json4s",
    "json4s-scalap": "org.json4s",
    "jsr305": "com.google.code.findbugs",
    "jta": "javax.transaction",
    "libfb303": "org.apache.thrift",
    "libthrift": "org.apache.thrift",
    "lz4-java": "org.lz4",
    "objenesis": "org.objenesis",
    "oro": "oro",
    "scala-compiler": "org.scala-lang",
    "scala-library": "org.scala-lang",
    "scala-parallel-collections": "org.scala-lang.modules",
    "scala-parser-combinators": "org.scala-lang.modules",
    "scala-reflect": "org.scala-lang",
    "scala-xml": "org.scala-lang.modules",
    "snappy-java": "org.xerial.snappy",
    "stax-api": "stax",
    "tink": "com.google.crypto.tink",
    "transaction-api": "javax.transaction",
    "xz": "org.tukaani",
    "zstd-jni": "com.github.luben",
}
"""The Maven group of each jar that has no Maven properties, by its artifact without the version of Scala."""

_FILE: Final = re.compile(r"(?P<artifact>.+?)-(?P<version>\d[\w.]*(?:-\d+)?)")
_PROPERTIES: Final = re.compile(r"META-INF/maven/[^/]+/[^/]+/pom\.properties")


@dataclass(frozen=True, slots=True)
class Jar:
    """A jar by its Maven coordinates."""

    group: str
    artifact: str
    version: str
    classifier: str
    sha256: str

    def component(self) -> dict[str, Any]:
        """Return the jar as a component of CycloneDX."""
        options = f"?classifier={self.classifier}&type=jar" if self.classifier else "?type=jar"
        url = f"pkg:maven/{self.group}/{self.artifact}@{self.version}{options}"
        return {
            "type": "library",
            "bom-ref": url,
            "group": self.group,
            "name": self.artifact,
            "version": self.version,
            "purl": url,
            "hashes": [{"alg": "SHA-256", "content": self.sha256}],
        }


def spark_files(tree: Tree) -> list[Path]:
    """Return the jars of pyspark that the Dockerfile leaves in the image."""
    removed = re.findall(r"\bpyspark/jars/(\S+)", tree.text("Dockerfile"))
    folder = pyspark_folder() / "jars"
    files = sorted(folder.rglob("*.jar"))
    return [f for f in files if not any(fnmatch.fnmatch(f.relative_to(folder).parts[0], p) for p in removed)]


def own_jars(tree: Tree) -> Iterator[Jar]:
    """Yield the jars of the destinations."""
    for path in tree.below("engine/levada/destinations", suffix="/jars.toml"):
        for jar in tomllib.loads(tree.text(path))["jar"]:
            yield Jar(jar["organisation"], jar["module"], jar["version"], "", jar["sha256"])


def _read(file: Path) -> Jar:
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    with zipfile.ZipFile(file) as archive:
        for name in filter(_PROPERTIES.fullmatch, archive.namelist()):
            found = dict(re.findall(r"^(\w+)=(.*?)\s*$", archive.read(name).decode(), re.MULTILINE))
            begin = f"{found['artifactId']}-{found['version']}"
            if file.stem == begin or file.stem.startswith(f"{begin}-"):
                classifier = file.stem.removeprefix(begin).removeprefix("-")
                return Jar(found["groupId"], found["artifactId"], found["version"], classifier, sha256)
    named = _FILE.fullmatch(file.stem)
    assert named is not None, file.name
    group = GROUPS[re.sub(r"_2\.\d+$", "", named["artifact"])]
    return Jar(group, named["artifact"], named["version"], "", sha256)


def document(tree: Tree) -> str:
    """Return the list as JSON."""
    jars = [*map(_read, spark_files(tree)), *own_jars(tree)]
    components = sorted((jar.component() for jar in jars), key=lambda component: str(component["purl"]))
    made = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}
    return json.dumps(made, indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document(Tree(ROOT)))
