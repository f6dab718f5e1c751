"""The tests near a change: ``python -m tests.near [COMMIT]`` prints the folders of tests that ``make near`` runs.

These are the tests of the packages that the working tree changed since the commit (HEAD), and of all packages above
them in `.importlinter`.
"""

from __future__ import annotations

import configparser
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
_SHARED: Final = ("tests/conftest.py", "tests/tiers.py", "tests/rigs/", "tests/servers/", "pyproject.toml")
_ELSEWHERE: Final = {"testing": ("destinations", "stores"), "levada_operator": ("operator", "chart")}
"""Packages whose tests have a folder of another name."""


def layers() -> list[frozenset[str]]:
    """Return the engine's packages from the highest layer to the lowest, as `.importlinter` has them."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    lines = contracts["importlinter:contract:layers"]["layers"].split("\n")
    return [
        frozenset(name.strip().removeprefix("levada.") for name in line.split("|")) for line in lines if line.strip()
    ]


def packages_of(paths: Iterable[str]) -> set[str]:
    """Return the packages of these paths: engine's packages, `levada_operator`, and folders of tests."""
    found = set()
    for path in paths:
        match Path(path).parts:
            case ("engine", "levada", name, *_):
                found.add(Path(name).stem)
            case ("operator" | "charts" | "crds", *_):
                found.add("levada_operator")
            case ("tests" | "examples" | "docs" as top, *below):
                found.add(below[0] if top == "tests" and len(below) > 1 else top)
    return found


def folders(paths: Iterable[str]) -> list[str]:
    """Return the folders of tests that can find what a change of these paths breaks."""
    changed = list(paths)
    everything = any(path.startswith(_SHARED) for path in changed)
    near = packages_of(changed)
    higher: set[str] = set()
    for layer in layers():
        higher |= layer
        if layer & near:
            near |= higher
            break
    return sorted(str(path.relative_to(ROOT)) for path in _tests() if everything or _covers(path, near))


def _covers(path: Path, packages: set[str]) -> bool:
    name = path.stem.removeprefix("test_")
    return any(name in _ELSEWHERE.get(package, (package,)) for package in packages)


def _tests() -> Iterator[Path]:
    """Yield each folder of tests except those of other tiers, and each module of tests next to the folders."""
    for path in (ROOT / "tests").iterdir():
        if path.is_dir() and path.name not in ("cluster", "faults", "install", "rigs", "servers"):
            if any(path.rglob("test_*.py")):
                yield path
        elif path.match("test_*.py"):
            yield path


def _changed(commit: str) -> list[str]:
    git = ("git", "-C", str(ROOT))
    since = subprocess.run([*git, "diff", "--name-only", commit], check=True, capture_output=True, text=True).stdout
    new = subprocess.run(
        [*git, "ls-files", "--others", "--exclude-standard"], check=True, capture_output=True, text=True
    ).stdout
    return (since + new).split()


if __name__ == "__main__":
    print(*folders(_changed(sys.argv[1] if sys.argv[1:] else "HEAD")))
