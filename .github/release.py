"""Check that a tag can be released, and print the section of the changelog that describes it."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Return what keeps the tag from being released."""
    version = tag.removeprefix("v")
    chart = (root / "charts" / "levada" / "Chart.yaml").read_text()
    found = {
        "pyproject.toml": tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"],
        "Chart.yaml version": _value(chart, "version"),
        "Chart.yaml appVersion": _value(chart, "appVersion"),
    }
    wrong = [f"{name} has {value}, not {version}" for name, value in found.items() if value != version]
    return wrong if notes(version, root) else [*wrong, f"CHANGELOG.md has no section [{version}] with a text"]


def notes(version: str, root: Path = ROOT) -> str:
    """Return the changelog's section of a version without its heading, or an empty text."""
    heading = re.escape(f"## [{version}]")
    section = re.search(rf"^{heading}[^\n]*\n(.*?)(?=^## |\Z)", (root / "CHANGELOG.md").read_text(), re.M | re.S)
    return section[1].strip() if section else ""


def _value(yaml: str, key: str) -> str:
    found = re.search(rf"^{key}: *[\"']?([^\"'\s]+)", yaml, re.M)
    return found[1] if found else "nothing"


def main() -> int:
    """Print the notes, or the problems on standard error. Return the exit code."""
    [tag] = sys.argv[1:]
    if wrong := problems(tag):
        print("\n".join(wrong), file=sys.stderr)
        return 1
    print(notes(tag.removeprefix("v")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
