"""The pages for newcomers agree with the code: CONTRIBUTING.md, docs/architecture.md and benchmarks/README.md."""

from __future__ import annotations

import configparser
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("CONTRIBUTING.md", "benchmarks/README.md", "docs/architecture.md", "docs/key-index.md", "docs/python.md")
CONTRACTS = configparser.ConfigParser()
CONTRACTS.read(ROOT / ".importlinter")


def lines_of(contract: str, option: str) -> list[str]:
    """Return the values of a contract's option, from the top layer down."""
    text = CONTRACTS[f"importlinter:contract:{contract}"][option]
    return [name.strip() for line in text.splitlines() for name in line.split("|") if name.strip()]


def page(path: str) -> str:
    """Return the text of a page in one line, so that a sentence may have any line breaks."""
    return " ".join((ROOT / path).read_text("utf-8").split())


def modules_in(sentence: str) -> set[str]:
    """Return the modules of the engine that a sentence names."""
    return set(re.findall(r"`(levada[.\w]*)`", sentence))


def rows_of(heading: str) -> list[str]:
    """Return the first cell of each row of the table of docs/architecture.md that follows a line."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8").partition(heading)[2].lstrip()
    return [line.split("|")[1] for line in text.partition("\n\n")[0].splitlines()[2:]]


def test_contributing_has_the_import_contracts() -> None:
    """It names the packages without I/O, and the modules of the engine that the operator may import."""
    text = page("CONTRIBUTING.md")
    protocol = re.search(r"Protocol code \((.*?)\)", text)
    assert protocol is not None
    assert modules_in(protocol[1]) == set(lines_of("protocol", "source_modules"))
    operator = re.search(r"Of the engine, the operator imports only (.*?`)\. ", text)
    assert operator is not None
    forbidden = {*lines_of("operator-engine", "forbidden_modules")}
    assert modules_in(operator[1]) == set(lines_of("layers", "layers")) - forbidden


@pytest.mark.parametrize(
    ("contract", "heading", "prefix"),
    [
        ("layers", "`.importlinter` is the contract, and `make lint` checks it.\n", "levada."),
        ("runtime", "Within `levada.runtime`, from top to bottom:\n", ""),
    ],
)
def test_the_tables_of_layers_have_the_contracts_order(contract: str, heading: str, prefix: str) -> None:
    """Each package in a table of the architecture page is a layer, in the order of the contract."""
    layers = lines_of(contract, "layers")
    named = [name.removesuffix(".py") for cell in rows_of(heading) for name in re.findall(r"`([\w.]+)`", cell)]
    assert len(named) > 5
    assert all(name.startswith(prefix) for name in named)
    assert [name for name in named if name not in layers] == []
    lines = CONTRACTS[f"importlinter:contract:{contract}"]["layers"].split("\n")
    depth = {name.strip(): depth for depth, line in enumerate(lines) for name in line.split("|")}
    assert [depth[name] for name in named] == sorted(depth[name] for name in named)


def paths_in(text: str) -> Iterator[str]:
    """Yield the paths of the repository that a page names in code and as links."""
    for name in re.findall(r"`([\w./-]+)`|\]\(([\w./-]+?)(?:#[\w-]+)?\)", text):
        path = "".join(name)
        if "/" in path and not path.startswith(("/", "http")):
            yield path


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_exist(document: str) -> None:
    """Each file and folder that a page names is in the repository."""
    engine = ROOT / "engine"
    folders = ((ROOT / document).parent, ROOT, engine, engine / "levada", engine / "levada" / "runtime")
    named = set(paths_in((ROOT / document).read_text("utf-8")))
    assert [path for path in sorted(named) if not any((folder / path).exists() for folder in folders)] == []


def test_commands_of_contributing_exist() -> None:
    """Each ``make`` target and each module that is run by ``python -m``."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = {name for line in re.findall(r"^([a-z][\w %-]*):(?!=)", makefile, re.MULTILINE) for name in line.split()}
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert set(re.findall(r"\bmake (?:-s )?([a-z][\w-]+)", text)) - targets == set()
    modules = re.findall(r"python -m ([\w.]+)", text)
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


def test_each_benchmark_is_described() -> None:
    """The page has each target with the module that it runs, and no other."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    recipe = r"\n\t\$\(BIN\)/python -m benchmarks\."
    patterned = re.search(rf"^(bench-[\w -]+): bench-%: setup{recipe}\$\*$", makefile, re.MULTILINE)
    assert patterned is not None
    runs = {target: target.removeprefix("bench-") for target in patterned[1].split()}
    runs |= dict(re.findall(rf"^(bench-\w+): setup .*{recipe}(\w+)", makefile, re.MULTILINE))
    text = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    assert dict(re.findall(r"^\| `make (bench-\w+)` \| \[`(\w+)(?:\.py)?`\]", text, re.MULTILINE)) == runs
    programs = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text("utf-8")}
    programs |= {path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")}
    assert programs == set(runs.values())
