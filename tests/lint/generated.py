"""Files that a program writes from the code."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from typing import Final

from tests.lint.tree import Finding, Tree

TYPES: Final = "docs/types.md"
JARS: Final = "requirements/jars.cdx.json"
EXCEPTIONS: Final = "requirements/osv-scanner.toml"
_WRITE_JARS: Final = f"run python -m tests.lint.jar_list > {JARS}"


def type_page(tree: Tree) -> Iterator[Finding]:
    """Report a docs/types.md that is not the one that the type mapping makes."""
    from tests.lint.type_page import page  # it needs the engine, as no other rule does

    for number, (line, made) in enumerate(zip(tree.text(TYPES).split("\n"), page().split("\n"), strict=False), 1):
        if line != made:
            yield Finding(TYPES, number, f"the code makes another page, run python -m tests.lint.type_page > {TYPES}")
            return


def jar_list(tree: Tree) -> Iterator[Finding]:
    """Report jars of the image that are missing in requirements/jars.cdx.json, and others that it has."""
    from tests.lint.jar_list import own_jars, spark_files

    if f"\npyspark=={version('pyspark')} " not in tree.text("requirements/image.txt"):
        yield Finding("requirements/image.txt", 0, f"pyspark {version('pyspark')} is installed here, run make setup")
    listed = {
        "-".join([c["name"], c["version"], *re.findall(r"classifier=([^&]+)", c["purl"])]) + ".jar"
        for c in json.loads(tree.text(JARS))["components"]
    }
    there = {f"{jar.artifact}-{jar.version}.jar" for jar in own_jars(tree)}
    there |= {file.name for file in spark_files(tree)}
    for name in sorted(there - listed):
        yield Finding(JARS, 0, f"{name} is missing, {_WRITE_JARS}")
    for name in sorted(listed - there):
        yield Finding(JARS, 0, f"{name} is not in the image, {_WRITE_JARS}")


def jar_checksums(tree: Tree) -> Iterator[Finding]:
    """Report a requirements/jars.cdx.json that is not the list of the jars by their contents."""
    from tests.lint.jar_list import document

    if tree.text(JARS) != document(tree):
        yield Finding(JARS, 0, f"the installed jars make another list, {_WRITE_JARS}")


def vulnerability_exceptions(tree: Tree) -> Iterator[Finding]:
    """Report ignored vulnerabilities without a reason or a last day."""
    for ignored in tomllib.loads(tree.text(EXCEPTIONS)).get("IgnoredVulns", []):
        if not ignored.get("id") or not ignored.get("reason") or "ignoreUntil" not in ignored:
            yield Finding(EXCEPTIONS, 0, f"{ignored} needs an id, a reason and ignoreUntil")
