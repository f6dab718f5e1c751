"""Commands, manifests and Python of every page are accepted by the program, on pages that no test runs as well."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import pytest
import typer
import yaml
from tests.docs.pages import PAGES, blocks_of

import levada
from levada.cli import main
from levada.spec import TableSyncSpec, load_manifests

ROOT = Path(__file__).parents[2]
FILES = sorted(
    file
    for place in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "examples/**/*.md", "charts/**/*.md")
    for file in ROOT.glob(place)
)
OF_A_PIPELINE = "tests/docs/test_pages_of_a_pipeline.py"
OF_MANIFESTS = "tests/examples/test_manifests.py"
OF_READMES = "tests/examples/test_readmes.py"
RUN = {
    **{f"docs/{page}": "tests/docs/pages.py" for page in PAGES},  # the list that test_pages_run.py runs
    "README.md": OF_A_PIPELINE,
    "docs/cli.md": OF_A_PIPELINE,
    "docs/cuts.md": OF_A_PIPELINE,
    "docs/verify.md": OF_A_PIPELINE,
    "docs/destinations/iceberg.md": OF_A_PIPELINE,
    "docs/python.md": "tests/docs/test_python_runs.py",
    "docs/guard.md": "tests/docs/test_guard_page.py",
    "docs/guides/schema-changes.md": "tests/runtime/test_taken_keys.py",
    "docs/guides/row-filters.md": "tests/cli/test_row_filters.py",
    "docs/guides/stored-types.md": "tests/cli/test_stored_types.py",
    "docs/guides/kept-rows.md": "tests/cli/test_kept_rows.py",
    "docs/guides/masks.md": "tests/cli/test_masks.py",
    "docs/guides/erasure.md": "tests/cli/test_erase.py",
    "docs/guides/copy-modes.md": "tests/cli/test_copy_modes.py",
    "docs/guides/metadata-columns.md": "tests/cli/test_metadata_columns.py",
    "docs/guides/keyless.md": "tests/cli/test_keyless.py",
    "docs/metrics.md": "tests/docs/test_metrics_page.py",
    "docs/destinations/bigquery.md": OF_MANIFESTS,
    "docs/destinations/ducklake.md": OF_MANIFESTS,
    "docs/destinations/opensearch.md": OF_MANIFESTS,
    "docs/destinations/postgresql.md": OF_MANIFESTS,
    "docs/tutorials/failover.md": "tests/faults/test_failover.py",
    "docs/start/kind.md": "tests/cluster/node/test_quickstart.py",
    "charts/levada/README.md": "tests/cluster/node/test_helm_page.py",
    "docs/helm.md": "tests/cluster/node/test_helm_page.py",
    "docs/operator.md": "tests/cluster/node/test_operator_page.py",
    "docs/page.md": "tests/cluster/node/test_trust.py",
    "docs/tutorials/custom-destination.md": "tests/lint/tutorials.py",
    "docs/tutorials/custom-store.md": "tests/lint/tutorials.py",
    "docs/security.md": "tests/postgres/test_documented_rights.py",
    **{
        f"examples/{name}/README.md": "tests/cluster/api/test_readmes.py"
        for name in ("cluster-mode", "dedicated-copy", "kubernetes")
    },
    "examples/change-capture/README.md": OF_READMES,
    "examples/custom-destination/README.md": OF_READMES,
    "examples/custom-store/README.md": OF_READMES,
    "examples/run-engine/README.md": OF_READMES,
    **{
        f"examples/{name}/README.md": OF_MANIFESTS
        for name in (
            "bigquery",
            "changelog",
            "ducklake",
            "laptop",
            "opensearch",
            "postgresql",
            "rest-catalog",
            "s3-jdbc-catalog",
        )
    },
}
"""The pages whose blocks run, or are the code of an example that runs, and the test that does it."""

NOT_RUN = {"SECURITY.md": "it verifies the signature of a published release"}
"""The pages with blocks that are not run, and why."""

PARTS = {"metrics": "values of the chart", "tableProperties": "a part of the destination's section"}


def name_of(file: Path) -> str:
    """Return the path of a page in the repository."""
    return str(file.relative_to(ROOT))


def test_each_page_is_run_or_has_a_reason() -> None:
    """A page with commands, queries or code is run by a test, or named here with the reason why it is not."""
    with_blocks = {name_of(file) for file in FILES if list(blocks_of(file))}
    assert sorted(with_blocks - RUN.keys() - NOT_RUN.keys()) == []
    assert sorted((RUN.keys() | NOT_RUN.keys()) - with_blocks) == []
    assert [page for page, test in RUN.items() if Path(page).stem.split("-")[0] not in (ROOT / test).read_text()] == []


def commands_of(text: str) -> Iterator[list[str]]:
    """Yield the words of each levada command in blocks of code and in code within the text."""
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    outside = re.sub(r"^ *```\w*\n.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for line in [*lines, *re.findall(r"`([^`\n]+)`", outside)]:
        for part in re.split(r"&&|[|;<>]| & | #|\)$", line):
            found = re.search(r"^(?P<before>.*?)(?:^|\s)levada (?P<words>[a-z-]+(?: .*)?)$", part.rstrip())
            # In Python and for Helm the word is a name.
            if found and not re.search(r"\b(?:from|helm)\b", found["before"]):
                yield shlex.split(found["words"].replace("…", "").replace("...", "").strip().rstrip("'\","))


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_each_command_is_accepted(file: Path) -> None:
    """Each ``levada`` command of a page exists and has the options that the page gives it."""
    group = typer.main.get_command(main)
    context = group.make_context("levada", ["version"], resilient_parsing=True)
    for words in commands_of(file.read_text("utf-8")):
        name, *arguments = [word for word in words if word not in ("--debug",)] or ["--help"]
        if name.startswith("-") or name == "COMMAND":
            continue
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        assert command is not None, f"levada {shlex.join(words)}"
        options = {option for parameter in command.params for option in getattr(parameter, "opts", [])} | {
            "--help",
            "-h",
        }
        unknown = [word for word in arguments if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in options]
        assert not unknown, f"levada {shlex.join(words)}"


def manifests_of(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each block of YAML, and each of its documents."""
    for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for document in yaml.safe_load_all(block):
            yield block, document


def completed(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return whole manifests that have a page's part of one."""
    key = {"name": "masks", "key": "hmac"}
    pipeline = {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": "shop"},
        "spec": {
            "source": {"host": "127.0.0.1", "database": "shop"},
            "tables": {"include": [{"schema": "public", "name": "*"}], "maskKeySecretRef": key},
            "destination": {"iceberg": {"catalog": {"type": "Hadoop", "warehouse": "file:///lake"}}},
        },
    }
    if document.get("kind") == "Pipeline":
        return [document]
    if document.get("kind") == "TableSync":
        if "custom" in document["spec"]:
            pipeline["spec"]["destination"] = {"custom": {"type": "lines"}}  # type: ignore[index]
        document["spec"] = {"pipelineRef": {"name": "shop"}, "table": {"name": "orders"}, **document["spec"]}
        return [pipeline, {"apiVersion": "levada.dev/v1alpha1", "metadata": {"name": "orders"}, **document}]
    pipeline["spec"] |= document.get("spec", document)  # type: ignore[operator]
    return [pipeline]


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_each_manifest_is_accepted(file: Path) -> None:
    """Each manifest of a page, or part of one, has fields and values that the engine accepts."""
    for block, document in manifests_of(file.read_text("utf-8")):
        if isinstance(document, list) or PARTS.keys() & document.keys():
            continue
        assert load_manifests(yaml.safe_dump_all(completed(document)), block).pipeline is not None


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_each_import_of_a_page_exists(file: Path) -> None:
    """Python of a page is Python, and each name that it imports from Levada exists."""
    for block in re.findall(r"^```python\n(.*?)^```$", file.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "levada":
                module = importlib.import_module(str(node.module))
                assert [a.name for a in node.names if not hasattr(module, a.name)] == []


def calls_of(text: str) -> Iterator[ast.Call]:
    """Yield each call in code within the text, and in blocks of Python, of a name that Levada exports."""
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    outside = re.sub(r"^ *```\w*\n.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for code in [*blocks, *re.findall(r"`([^`\n]+)`", outside)]:
        whole = code.replace("…", "...") + (":\n    pass" if code.startswith("with ") and "\n" not in code else "")
        # A regular expression in a sentence is no call, and warns about its escapes.
        with suppress(SyntaxError), catch_warnings(action="ignore"):
            found = (node for node in ast.walk(ast.parse(whole)) if isinstance(node, ast.Call))
            yield from (node for node in found if isinstance(node.func, ast.Name) and node.func.id in levada.__all__)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_each_argument_of_a_page_exists(file: Path) -> None:
    """A call on a page of a function or a class of Levada has arguments that it takes."""
    for call in calls_of(file.read_text("utf-8")):
        assert isinstance(call.func, ast.Name)
        parameters = inspect.signature(getattr(levada, call.func.id))
        named = {argument.arg: None for argument in call.keywords if argument.arg is not None}
        given = [None for argument in call.args if not (isinstance(argument, ast.Constant) and argument.value is ...)]
        parameters.bind_partial(*given, **named)


OBJECTS = {
    "capture": levada.WalChangeCapture,
    "engine": levada.Engine,
    "pipeline": levada.Pipeline,
    "stream": levada.ChangeStream,
}
"""The classes of the objects whose methods docs/python.md has in its tables."""


def documented_calls() -> Iterator[tuple[str, ast.Call, Any]]:
    """Yield each call in the first column of a table of docs/python.md, and the function that it calls."""
    for cell in re.findall(r"^\| (`[^|]*) \|", (ROOT / "docs" / "python.md").read_text(), re.MULTILINE):
        for code in re.findall(r"`([^`]+)`", cell):
            written = ast.parse(code.replace("with ", "").replace(" as cleanup", "").replace("…", "..."))
            arguments = {id(a) for c in ast.walk(written) if isinstance(c, ast.Call) for a in c.args}
            for node in ast.walk(written):
                if id(node) in arguments:
                    continue
                match node:
                    case ast.Call(func=ast.Name(id=name)) if name in levada.__all__:
                        yield code, node, getattr(levada, name)
                    case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if name in OBJECTS:
                        yield code, node, getattr(OBJECTS[name], method)


def test_the_python_page_has_the_signatures() -> None:
    """A call in a table of docs/python.md has every parameter of the function, by its name and with its default."""
    checked = 0
    for code, call, function in documented_calls():
        parameters = inspect.signature(function).parameters
        names = [name for name in parameters if name not in ("self", "args", "kwargs")]
        given = [*names[: len(call.args)], *(argument.arg for argument in call.keywords)]
        assert set(given) == set(names), f"{code} has not the parameters {names}"
        for argument in call.keywords:
            if isinstance(argument.value, ast.Constant) and argument.value.value is not ...:
                assert parameters[str(argument.arg)].default == argument.value.value, code
        checked += 1
    assert checked > 35


def test_the_python_page_has_every_call() -> None:
    """Each public method of these classes is in a table of docs/python.md, or is explained in its text."""
    page = (ROOT / "docs" / "python.md").read_text()
    for name, kind in OBJECTS.items():
        methods = [m for m, _ in inspect.getmembers(kind, inspect.isfunction) if not m.startswith("_")]
        missing = [m for m in methods if f"{name}.{m}(" not in page]
        assert missing == [], f"{name}: {missing}"


def test_calls_of_a_page_are_seen() -> None:
    """In a sentence, in a with statement and in a block."""
    text = "`PostgresConnection(a, b=…)` and `with Engine(x) as e`.\n```python\nrun(Pipeline(c, store=s))\n```\n"
    assert sorted(call.func.id for call in calls_of(text) if isinstance(call.func, ast.Name)) == [
        "Engine", "Pipeline", "PostgresConnection",
    ]  # fmt: skip


def test_an_example_says_each_thing_that_a_table_sync_can() -> None:
    """examples/kubernetes has every field of a TableSync, but those of a destination of another package."""
    manifests = load_manifests((ROOT / "examples" / "kubernetes" / "pipeline.yaml").read_text())
    used = {field for table in manifests.table_syncs for field in table.spec.model_fields_set}
    assert set(TableSyncSpec.model_fields) - used == {"custom"}
