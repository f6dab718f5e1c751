"""The pages for newcomers agree with the code: CONTRIBUTING.md, docs/architecture.md and benchmarks/README.md."""

from __future__ import annotations

import configparser
import posixpath
import re
from collections.abc import Iterator
from typing import Final

from tests.lint.public_names import PACKAGES
from tests.lint.tree import Finding, Tree, line_of

CONTRIBUTING: Final = "CONTRIBUTING.md"
ARCHITECTURE: Final = "docs/architecture.md"
BENCHMARKS: Final = "benchmarks/README.md"
TROUBLESHOOTING: Final = "docs/guides/troubleshooting.md"
ALERTS: Final = "charts/levada/templates/prometheusrule.yaml"
API: Final = "docs/api.md"
DOCUMENTS: Final = (
    CONTRIBUTING,
    BENCHMARKS,
    ARCHITECTURE,
    *(f"docs/architecture/{name}.md" for name in ("copies", "changes", "state")),
    "docs/key-index.md",
    "docs/python.md",
)
ROOTS: Final = ("", "engine", "engine/levada", "engine/levada/runtime")
"""The folders at which a path on a page may begin, next to the page's own."""
LAYER_TABLES: Final = (
    ("layers", "`.importlinter` is the contract, and `make lint` checks it.\n", "levada."),
    ("runtime", "Within `levada.runtime`, from top to bottom:\n", ""),
)
"""A contract, the line before its table on the architecture page, and how its names begin."""


def contracts_on_pages(tree: Tree) -> Iterator[Finding]:
    """Report packages that CONTRIBUTING.md names otherwise than .importlinter: without I/O, or for the operator."""
    text = " ".join(tree.text(CONTRIBUTING).split())
    protocol = set(_option(tree, "protocol", "source_modules"))
    operator = {*_option(tree, "layers", "layers")} - {*_option(tree, "operator-engine", "forbidden_modules")}
    for sentence, modules in (
        (r"Protocol code \((.*?)\)", protocol),
        (r"Of the engine, the operator imports only (.*?`)\. ", operator),
    ):
        found = re.search(sentence, text)
        if found is None:
            yield Finding(CONTRIBUTING, 0, f"no sentence matches {sentence!r}")
        elif wrong := modules ^ set(re.findall(r"`(levada[.\w]*)`", found[1])):
            yield Finding(CONTRIBUTING, 0, f"{found[0][:40]}...: {sorted(wrong)} differ from .importlinter")


def layer_tables(tree: Tree) -> Iterator[Finding]:
    """Report packages in the tables of the architecture page that are no layer, or in another order than the layers."""
    text = tree.text(ARCHITECTURE)
    for contract, heading, prefix in LAYER_TABLES:
        lines = _contracts(tree)[f"importlinter:contract:{contract}"]["layers"].split("\n")
        depth = {name.strip(): depth for depth, line in enumerate(lines) for name in line.split("|")}
        table = text.partition(heading)[2].lstrip("\n").partition("\n\n")[0].splitlines()
        cells = [(line, name) for line in table for name in re.findall(r"`([\w.]+)`", line.split("|")[1])]
        if len(cells) <= 5:
            yield Finding(ARCHITECTURE, 0, f"no table follows {heading.strip()!r}")
        above = 0
        for line, name in ((line_of(text, line), name.removesuffix(".py")) for line, name in cells):
            if name not in depth or not name.startswith(prefix):
                yield Finding(ARCHITECTURE, line, f"{name} is no layer of the contract {contract}")
            elif depth[name] < above:
                yield Finding(ARCHITECTURE, line, f"{name} is above the rows before it in the contract {contract}")
            above = depth.get(name, above)


def paths_on_pages(tree: Tree) -> Iterator[Finding]:
    """Report files and folders on pages for newcomers that are not in the repository."""
    for document in DOCUMENTS:
        text = tree.text(document)
        for name in re.findall(r"`([\w./-]+)`|\]\(([\w./-]+?)(?:#[\w-]+)?\)", text):
            path = "".join(name)
            if "/" not in path or path.startswith(("/", "http")):
                continue
            places = [posixpath.normpath(posixpath.join(f, path)) for f in (posixpath.dirname(document), *ROOTS)]
            if not any(tree.has(place) for place in places):
                yield Finding(document, line_of(text, path), f"{path} is not in the repository")


def commands_of_contributing(tree: Tree) -> Iterator[Finding]:
    """Report targets of make and modules run by ``python -m`` that CONTRIBUTING.md names and that do not exist."""
    text, targets = tree.text(CONTRIBUTING), make_targets(tree)
    for target in re.findall(r"\bmake (?:-s )?([a-z][\w-]+)", text):
        if target not in targets:
            yield Finding(CONTRIBUTING, line_of(text, f"make {target}"), f"the Makefile has no target {target}")
    for module in re.findall(r"python -m ([\w.]+)", text):
        path = module.replace(".", "/")
        places = [f"{root}{path}{end}" for root in ("", "engine/", "operator/") for end in (".py", "/__main__.py")]
        if not any(tree.has(place) for place in places):
            yield Finding(CONTRIBUTING, line_of(text, f"python -m {module}"), f"there is no module {module} to run")


def benchmarks_page(tree: Tree) -> Iterator[Finding]:
    """Report benchmarks without a row in benchmarks/README.md or a target, and rows and targets without one."""
    makefile = tree.text("Makefile")
    recipe = r"\n\t\$\(BIN\)/python -m benchmarks\."
    patterned = re.search(rf"^(bench-[\w -]+): bench-%: setup{recipe}\$\*$", makefile, re.MULTILINE)
    targets = patterned[1].split() if patterned else []
    runs = {target: target.removeprefix("bench-") for target in targets}
    runs |= dict(re.findall(rf"^(bench-\w+): setup .*{recipe}(\w+)", makefile, re.MULTILINE))
    rows = dict(re.findall(r"^\| `make (bench-\w+)` \| \[`(\w+)(?:\.py)?`\]", tree.text(BENCHMARKS), re.MULTILINE))
    for target, module in sorted(rows.items() ^ runs.items()):
        yield Finding(BENCHMARKS, 0, f"`make {target}` with {module} is only in one of the Makefile and the page")
    paths = tree.below("benchmarks")
    programs = {posixpath.basename(p).removesuffix(".py") for p in paths if p.count("/") == 1 and _runs(tree, p)}
    programs |= {p.split("/")[1] for p in paths if p.count("/") == 2 and p.endswith("/__main__.py")}
    for program in sorted(programs ^ set(runs.values())):
        yield Finding("Makefile", 0, f"benchmarks.{program} needs a module that runs and a target that runs it")


def workflow_targets(tree: Tree) -> Iterator[Finding]:
    """Report targets of make that a workflow or a script of .ci calls and that do not exist."""
    targets = make_targets(tree)
    for path in [*tree.below(".github/workflows", suffix=".yml"), *tree.below(".ci", suffix="")]:
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            for target in re.findall(r"\bmake ([a-z-]+)", line):
                if target not in targets:
                    yield Finding(path, number, f"the Makefile has no target {target}")


def alerts_page(tree: Tree) -> Iterator[Finding]:
    """Report alerts that only one of the chart and docs/guides/troubleshooting.md has."""
    alerts = set(re.findall(r"alert: (\w+)", tree.text(ALERTS)))
    for name in sorted(alerts ^ set(re.findall(r"`(Levada\w+)`", tree.text(TROUBLESHOOTING)))):
        yield Finding(TROUBLESHOOTING, 0, f"the alert {name} is only in one of {ALERTS} and the page")


def api_page(tree: Tree) -> Iterator[Finding]:
    """Report public packages that docs/api.md does not have once, and others that it has."""
    listed = re.findall(r"automodule:: (\S+)", tree.text(API))
    if sorted(listed) != sorted(PACKAGES):
        yield Finding(API, 0, f"the page has {sorted(listed)}, but the public packages are {sorted(PACKAGES)}")


def make_targets(tree: Tree) -> set[str]:
    """Return the targets of the Makefile."""
    named = re.findall(r"^([a-z][\w %-]*):(?!=)", tree.text("Makefile"), re.MULTILINE)
    return {name for line in named for name in line.split()}


def _runs(tree: Tree, path: str) -> bool:
    return "__main__" in tree.text(path)


def _contracts(tree: Tree) -> configparser.ConfigParser:
    contracts = configparser.ConfigParser()
    contracts.read_string(tree.text(".importlinter"))
    return contracts


def _option(tree: Tree, contract: str, option: str) -> list[str]:
    """Return the values of a contract's option, from the top layer down."""
    text = _contracts(tree)[f"importlinter:contract:{contract}"][option]
    return [name.strip() for line in text.splitlines() for name in line.split("|") if name.strip()]
