"""Each rule finds its fault: in a few files that have it, or in the project's own files after one edit."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from tests.lint.destinations import ALLOWED
from tests.lint.edited_tree import EditedTree, FewFiles
from tests.lint.external import run_linter
from tests.lint.generated import jar_checksums
from tests.lint.guarantees_page import page
from tests.lint.ownership import OWNED, RECORD, RECORD_OWNERS, RUNTIME
from tests.lint.rules import RULES, name_of, summary_of
from tests.lint.tree import ROOT, Tree

PROJECT = Tree(ROOT)
ERRORS = {
    "engine/levada/errors.py": "class LevadaError(Exception): ...\nclass NeedsOperator(LevadaError): ...\n",
    "docs/errors.md": "| `slot_lost` | The slot is gone. NeedsOperator. | Copy again. |\n",
    "engine/levada/slots.py": 'raise NeedsOperator("slot_lost", "gone", hint="levada resync MANIFEST --all")\n',
    "engine/levada/cli/app.py": "@command()\ndef resync(manifest): ...\n",
}
NAMING = {
    "pyproject.toml": '[project.entry-points."levada.destinations"]\niceberg = "levada.destinations.iceberg:Iceberg"\n',
    **dict.fromkeys(ALLOWED, 'LOGGER = "pyiceberg"\n'),
}
AGES = {"engine/levada/b.py": "def f(now: float):\n    return now - at > 1", "operator/b.py": ""}
STORED = (
    "def f(at, now: datetime):\n    return now - at > DAY",
    "def f(self):\n    return datetime.now(UTC) - self.at < DAY",
    "def f(observed):\n    return observed.now - at < DAY",
    "def f(at):  now = _utcnow()\ndef g(): now, x = datetime.now(UTC), 1; return (now - at).total_seconds() > 3",
)
AREA = "docs/guarantees/a.toml"
HELD = {
    "tests/test_a.py": "@pytest.mark.skip(reason)\ndef test_c(): ...\ndef test_a(): ...\ndef helper(): ...",
    "docs/guarantees/summary.toml": '[[line]]\ntext = "All is well"\nareas = ["a"]\n',
}
RECIPE = {
    "engine/levada/schema/types.py": "class Kind:\n    INT8 = 1\n    DATE = 2\n",
    "CONTRIBUTING.md": "**A PostgreSQL type.**\n| `schema/types.py` |\nA new Arrow type\n| `keys.py` |\n**A field.**",
    "engine/levada/keys.py": "x = pa.types.is_date32(kind)",
}
USES_KIND = "from levada.schema import Kind\n"
STATES = {
    **{f"{RUNTIME}/{owner}": "" for owned in OWNED for owner in owned.owners},
    **{f"{RUNTIME}/{owner}": "" for owner in RECORD_OWNERS.values()},
    **{
        f"{RUNTIME}/{module}": "".join(
            [
                *(f"class {o.state}:\n    not_before: float\n    error: str\n" for o in OWNED if o.module == module),
                *(["class TableRecord:\n    phase: str\n    resync: object\n"] if module == RECORD else []),
            ]
        )
        for module in {RECORD, *(o.module for o in OWNED)}
    },
}


@dataclass(frozen=True)
class Case:
    """A tree with one fault, at ``place``."""

    rule: str
    tree: Tree = field(repr=False)
    place: str

    @property
    def found(self) -> list[str]:
        """The places that the rule finds."""
        rule = next(rule for rule in RULES if name_of(rule) == self.rule)
        return [f"{finding.path}:{finding.line}" for finding in rule(self.tree)]


def edited(rule: str, path: str, old: str, new: str, place: str = "") -> Case:
    """Return the project with one edit, found at a line of that file or at another place."""
    text = PROJECT.text(path)
    before, found, after = text.partition(old)
    assert found, f"{path} has no {old!r}"
    tree = EditedTree(PROJECT, {path: before + new + after})
    return Case(rule, tree, place or f"{path}:{before.count(chr(10)) + 1}")


def few(rule: str, files: dict[str, str], place: str) -> Case:
    """Return a tree of these files alone, with the fault at this place."""
    return Case(rule, FewFiles(files), place)


def statement(*lines: str, caller: str = "read(conn)") -> Case:
    """Return a function with a statement at the source in its last line, and a stage of the engine that calls it."""
    text = "\n".join(("def read(conn: psycopg.Connection[Any]):", *lines, "    return conn.execute(query)"))
    files = {"engine/levada/postgres/a.py": text, "engine/levada/runtime/b.py": f"def stage():\n    {caller}\n"}
    return few("source-calls", files, f"engine/levada/postgres/a.py:{len(lines) + 2}")


def code(rule: str, path: str, *lines: str) -> Case:
    """Return one file of Python, with the fault in its last line."""
    return few(rule, {path: "\n".join(lines) + "\n"}, f"{path}:{len(lines)}")


def errors(rule: str, path: str, text: str, line: int = 1) -> Case:
    """Return a tree of errors with another file."""
    return few(rule, {**ERRORS, path: text}, f"{path}:{line}")


def promised(*tests: str, text: str = "Kept.", written: bool = True, place: str = f"{AREA}:3") -> Case:
    """Return a promise that these tests show, and the page of it if it is ``written``."""
    area = f'title = "A"\n[[promise]]\npromise = "{text.strip()}"\ntests = {list(tests)}\n'
    files = {**HELD, AREA: area, "tests/rigs.py": "def test_a(): ..."}
    return few("guarantees", {**files, "docs/guarantees.md": page(FewFiles(files)) if written else ""}, place)


def recipe(text: str) -> Case:
    """Return a recipe for a type, and a module that it does not name."""
    path = "engine/levada/a.py"
    return few("type-recipe", {**RECIPE, path: text}, f"{path}:0")


def states(rule: str, *lines: str, path: str = "supervisor.py") -> Case:
    """Return a runtime with another module, with the fault in its last line."""
    return few(rule, {**STATES, f"{RUNTIME}/{path}": "\n".join(lines)}, f"{RUNTIME}/{path}:{len(lines)}")


FAULTS = (
    edited("alerts-page", "docs/guides/troubleshooting.md", "`Levada", "`Lavada", "docs/guides/troubleshooting.md:0"),
    edited("api-page", "docs/api.md", "automodule:: levada.events", "automodule:: levada.values", "docs/api.md:0"),
    edited("benchmarks-page", "benchmarks/README.md", "`make bench-copy`", "make it", "benchmarks/README.md:0"),
    edited("commands-of-contributing", "CONTRIBUTING.md", "`make test`", "`make tests`"),
    edited("commands-of-contributing", "CONTRIBUTING.md", "-m levada.spec.reference", "-m levada.spec.references"),
    edited("contracts-on-pages", "CONTRIBUTING.md", "`levada.spec`", "`levada.cli`", "CONTRIBUTING.md:0"),
    few(
        "ages",
        {**AGES, "engine/levada/a.py": "\ndef f(at, now: datetime):\n    return now - at > DAY"},
        "engine/levada/a.py:3",
    ),
    few(
        "ages",
        {**AGES, "operator/a.py": "def f(self):\n    return datetime.now(UTC) - self.at < DAY"},
        "operator/a.py:2",
    ),
    *(few("ages", {**AGES, "operator/a.py": text}, "operator/a.py:2") for text in STORED),
    few("destination-names", {**NAMING, "engine/levada/a.py": "\nICEBERG = 1"}, "engine/levada/a.py:2"),
    few("destination-names", {**NAMING, "engine/levada/logs.py": ""}, "engine/levada/logs.py:0"),
    errors("error-classes", "docs/errors.md", "| `slot_lost` | The slot is gone. Transient. | Copy again. |\n"),
    errors(
        "error-codes", "docs/errors.md", ERRORS["docs/errors.md"] + "| `gone` | Gone. NeedsOperator. | Wait. |\n", 2
    ),
    errors("error-codes", "docs/errors.md", ERRORS["docs/errors.md"] * 2),
    errors("error-codes", "engine/levada/a.py", 'Failure(code="new" if x else "slot_lost")\n'),
    errors("error-codes", "operator/b.py", 'Problem("error", "new", "message")\n'),
    errors("code-names", "engine/levada/a.py", 'if error.code == "slot_lost": ...\n'),
    errors("code-names", "engine/levada/a.py", 'LOST = frozenset({"slot_lost"})\n'),
    errors("code-names", "operator/b.py", '{"slot_lost": "Lost"}\n'),
    errors("code-names", "engine/levada/codes.py", 'SLOT_LOST: Final = "slot_lost"\n'),
    errors("error-codes", "engine/levada/a.py", "raise NeedsOperator(codes.GONE)\n"),
    errors("error-hints", "engine/levada/a.py", 'raise NeedsOperator("slot_lost", "gone")\n'),
    errors("hint-commands", "engine/levada/a.py", 'hint = "run levada resink MANIFEST --all"\n'),
    errors("hint-commands", "engine/levada/a.py", 'hint = f"then: levada retry MANIFEST {table}"\n'),
    code("frozen-values", "engine/levada/copy/a.py", "@dataclass(frozen=True)", "class A:", "    a: dict[str, int]"),
    code("frozen-values", "engine/levada/copy/a.py", "def f(a: MutableMapping[str, int]): ..."),
    edited("error-texts", "tests/lint/error_texts.txt", "DecodeError | ", "DecodeError | x"),
    edited("golden-names", "tests/lint/public_names.txt", "levada.Ack\n", "levada.Gone\n"),
    promised("tests/test_a.py::test_b"),
    promised("tests/test_b.py::test_a"),
    promised("tests/test_a.py::helper"),
    promised("tests/test_a.py::test_c"),
    promised("tests/rigs.py"),
    promised(),
    promised("tests/test_a.py::test_a", text="Kept " * 26),
    promised("tests/test_a.py::test_a", written=False, place="docs/guarantees.md:0"),
    edited("guarantees", "docs/guarantees/summary.toml", '"owner", ', "", "docs/guarantees/owner.toml:0"),
    edited("jar-list", "Dockerfile", "pyspark/jars/", "pyspark/jar/", "requirements/jars.cdx.json:0"),
    code("language-of-code", "engine/levada/a.py", '"""A module."""', "def f():", '    """Tell a fact."""'),
    code("language-of-code", "engine/levada/a.py", 'print("somebody else has the slot")'),
    few("language-of-docs", {"docs/a.md": "A fact.\nNobody knows `nobody`.\n"}, "docs/a.md:2"),
    code("language-of-tests", "tests/test_a.py", "def test_a():", '    """One fact; another."""'),
    code("language-of-tests", "tests/test_a.py", "def test_a():", '    """What is true."""'),
    edited("layer-tables", "docs/architecture.md", "| `levada.stores` |", "| `levada.status`, `levada.stores` |"),
    edited("layer-tables", "docs/architecture.md", "| `levada.stores` |", "| `levada.storages` |"),
    code("lock-limits", "engine/levada/a.py", """conn.execute("SET LOCAL lock_timeout = '2s'")"""),
    code("lock-limits", "engine/levada/a.py", """conn.execute("SET lock_timeout = 0")"""),
    code("lock-limits", "engine/levada/a.py", "_LOCK_S: Final = 10.0"),
    edited("locks-agree", "requirements/operator.txt", "\nkopf==", "\nkopf==0", "requirements/operator.txt:0"),
    edited("locks-name-no-host", "requirements/build.txt", "--hash", "https://example.com --hash"),
    edited("locks-satisfy-the-project", "requirements/dev.txt", "\npyarrow==", "\nx==", "requirements/dev.txt:0"),
    few("machine-paths", {"docs/a.md": f"\n{ROOT}/docs\n"}, "docs/a.md:2"),
    edited("names-of-examples", "examples/custom-store/custom_store.py", "import sqlite3", "import levada.values"),
    edited("names-of-examples", "examples/custom-store/custom_store.py", "from levada.stores ", "from levada.sto "),
    code("parsed-names", "engine/levada/a.py", "A = '''", "WHERE owner = current_user::pg_catalog.regrole'''"),
    code("parsed-names", "operator/a.py", 'SQL = "SELECT to_regclass(%s)"'),
    edited("paths-on-pages", "CONTRIBUTING.md", "`tests/pgoutput/", "`tests/no/such/"),
    states("pool-jobs", "pool.submit(work)", path="stages/copy.py"),
    states("pool-jobs", "pool.submit(lambda: record.name)", path="stages/copy.py"),
    code("overwritten-constants", "tests/test_a.py", 'monkeypatch.setattr("levada.copy.guard.MOST_S", 1)'),
    code("overwritten-constants", "tests/test_a.py", "import levada.a", 'p.setattr(levada.a, "MOST_S", 1)'),
    code("overwritten-constants", "tests/test_a.py", "from levada import a as b", 'setattr(b, "MOST_S", 1)'),
    code("overwritten-constants", "tests/test_a.py", "from levada.a import A", 'p.setattr(A, "_MOST_S", 1)'),
    code("overwritten-constants", "tests/test_a.py", "from levada_operator import a", "a.MOST_S = 1"),
    code("private-attributes", "tests/test_a.py", "engine._store = None"),
    code("private-attributes", "tests/test_a.py", 'monkeypatch.setattr(engine, "_store", None)'),
    states("record-owners", "record.phase = 'x'"),
    states("record-owners", "record.resync = other"),
    code(
        "handled-messages",
        "engine/levada/runtime/a.py",
        "def begin(inbox):",
        "    if folds: inbox.on(Folded, end)",
        "class Folded(Message): ...",
    ),
    code(
        "silent-threads",
        "engine/levada/a.py",
        "marked_thread(work, 'a')",
        "def work():",
        "    try: pass",
        "    except Exception: pass",
    ),
    few("source-roots", {"operator/__init__.py": ""}, "operator/__init__.py:0"),
    states("state-owners", "record.resync.not_before += 1"),
    states("state-owners", "resync.not_before = 1"),
    states("state-owners", "del record.resync.error"),
    states("state-owners", "a, self.record.resync.error = 1, 2"),
    states("state-owners", "record.resync.error.clear()"),
    states("state-owners", "record.resync.finish()"),
    edited("tutorials", "docs/tutorials/custom-store.md", "```python\n", "```python\nno_such_line()\n"),
    edited("type-page", "docs/types.md", "| boolean |", "| bool |"),
    recipe(USES_KIND + "NAMES = {Kind.DATE: 'date'}"),
    recipe(USES_KIND + "INTEGERS = frozenset({Kind.INT8})"),
    recipe(USES_KIND + "INTEGERS = (Kind.INT8, 1)"),
    recipe(USES_KIND + "def f(kind): return kind is Kind.DATE"),
    recipe(USES_KIND + "def f(kind): return kind in (Kind.DATE,)"),
    recipe(USES_KIND + "match 1:\n    case Kind.DATE | Kind.INT8: pass"),
    recipe("x = pa.types.is_date32(kind)"),
    few("type-recipe", {**RECIPE, "engine/levada/keys.py": ""}, "CONTRIBUTING.md:4"),
    few(
        "vulnerability-exceptions",
        {"requirements/osv-scanner.toml": '[[IgnoredVulns]]\nid = "x"\nreason = "none"\n'},
        "requirements/osv-scanner.toml:0",
    ),
    few(
        "workflow-jobs-end",
        {".github/workflows/a.yml": "jobs:\n  test: {runs-on: ubuntu}\n"},
        ".github/workflows/a.yml:2",
    ),
    few(
        "workflow-targets",
        {"Makefile": "test: setup\n", ".github/workflows/a.yml": "\n      - run: make tests\n"},
        ".github/workflows/a.yml:2",
    ),
    code("helper-imports", "tests/test_a.py", "from tests.conftest import Database"),
    code("helper-imports", "tests/test_a.py", "import tests.cluster.test_b as b"),
    code("helper-imports", "benchmarks/a.py", "from tests.cluster.api import conftest"),
    code("imported-names", "benchmarks/a.py", "from levada.gone import verify"),
    code("imported-names", "tests/test_a.py", "def test_a():", "    import tests.gone"),
    code("imported-names", "engine/levada/a.py", "b = 1", "from levada.a import gone as c"),
    code("late-reads", "tests/cluster/test_a.py", "def test_a(kubectl):", "    assert events(kubectl, 'Drained')"),
    code("late-reads", "tests/cluster/test_a.py", "def test_a(kubectl):", "    found = kubectl.get('events')"),
    code("late-reads", "tests/cluster/test_a.py", "def test_a(operator):", "    assert operator.metrics() == {}"),
    code("late-reads", "tests/runtime/test_a.py", "def test_a(rig):", "    assert rig.running.progress().ready"),
    code("own-waits", "tests/test_a.py", "while time.monotonic() < deadline: ..."),
    code("own-waits", "tests/test_a.py", "while not done:", "    if late:", "        time.sleep(0.1)"),
    code("process-state", "engine/levada/a.py", "_known: Final[dict[str, int]] = {}"),
    code("process-state", "engine/levada/a.py", "class Sessions: ...", "SESSIONS: Final = Sessions()"),
    code("process-state", "engine/levada/a.py", "@cache", "def version(): return read()"),
    code("process-state", "engine/levada/a.py", "def run(): gc.set_threshold(5)"),
    code("shared-logs", "tests/test_a.py", "lines = db.server.log.read_text().splitlines()"),
    code("short-limits", "tests/test_a.py", "subprocess.run(command, timeout=30)"),
    code("short-limits", "tests/test_a.py", "thread.join(5)"),
    statement(),
    statement("    with source_errors('reading'):", "        pass"),
)
GOOD = (
    statement(caller="with source_errors('reading'): read(conn)"),
    statement(caller="pass"),
    promised("tests/test_a.py::test_a", place=""),
    errors("error-codes", "engine/levada/a.py", 'Failure("slot_lost" if x else code)\n'),
    errors("error-hints", "engine/levada/a.py", 'raise NeedsOperator(code, "gone")\n'),
    code("helper-imports", "tests/test_a.py", "from tests.rigs.database import Database"),
    code(
        "imported-names",
        "engine/levada/a.py",
        "from levada.a import b, c",
        "if b:",
        "    c: int = 1",
        "import d.b as b",
    ),
    code(
        "imported-names",
        "engine/levada/a.py",
        "from levada import a",
        "from levada.a import x",
        "def __getattr__(x): ...",
    ),
    code("language-of-code", "engine/levada/a.py", '"""Return `told` as ``told``."""'),
    code("late-reads", "tests/cluster/test_a.py", "def test_a():", "    until(lambda: events(kubectl, 'Drained'))"),
    code("late-reads", "tests/test_a.py", "def test_a():", "    assert events(plan)"),
    code("late-reads", "tests/test_a.py", "def test_a():", "    until(lambda: rig.running.progress().ready)"),
    code("late-reads", "tests/test_a.py", "def test_a():", "    assert samples.progress().ready"),
    code("own-waits", "tests/test_a.py", "began = time.monotonic()", "time.sleep(1)"),
    code("own-waits", "tests/test_a.py", "for _ in kills: time.sleep(chance.uniform(1, 5))"),
    code("own-waits", "tests/test_a.py", "for _ in rows: time.sleep(1)  # paced: each row is a batch of its own"),
    code("own-waits", "tests/rigs/waiting.py", "while time.monotonic() < deadline: time.sleep(1)"),
    code("overwritten-constants", "tests/test_a.py", "from levada import a", 'p.setattr(a, "hold_table", fail)'),
    code("overwritten-constants", "tests/test_a.py", "from kubernetes import a", 'p.setattr(a, "DEFAULT", "none")'),
    code("overwritten-constants", "tests/test_a.py", "from levada import a", "self.MOST_S = a.MOST_S"),
    code("private-attributes", "tests/test_a.py", "self._store = cls._store = None"),
    code("process-state", "engine/levada/a.py", "_names: Final = {'a': 1}", "class A:", "    names: list[str] = []"),
    code("short-limits", "tests/test_a.py", "thread.join(LIMIT_S)", "wait_for(work, timeout_s=0)", "', '.join(names)"),
    code("short-limits", "tests/test_a.py", "thread.join(0.1)  # paced: it goes on meanwhile"),
    recipe("from levada.verify.differences import Kind\nNAMES = {Kind.DATE: 'date'}"),
    recipe(USES_KIND + "x: Kind = ColumnType(Kind.INT8)"),
    recipe(USES_KIND + "COLUMNS = {'at': ColumnType(Kind.DATE)}"),
    recipe("x = pa.types.is_list(kind)"),
    states("pool-jobs", "def work():  # in a pool", "    pass", "pool.submit(work)", path="stages/copy.py"),
    states("record-owners", "record.phase = 'x'", path="tables/phase_changes.py"),
    states("state-owners", "record.resync.finish()", path="stages/resync.py"),
    states("state-owners", "record.resync.request()"),
    states("state-owners", "n = resync.not_before"),
    states("state-owners", "stage.resync(record)"),
)


def test_every_rule_has_a_fault() -> None:
    """No rule is without a proof that it finds something, and none without a summary."""
    assert {name_of(rule) for rule in RULES} == {case.rule for case in FAULTS}
    assert all(summary_of(rule).startswith("Report ") for rule in RULES)


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.rule)
def test_a_fault_is_found(case: Case) -> None:
    """The rule finds the place."""
    assert case.place in case.found


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.rule)
def test_other_code_is_allowed(case: Case) -> None:
    """The rule finds nothing in code that is like a fault and is none."""
    assert case.found == []


def test_checksums_of_jars_are_compared() -> None:
    """The list is another one if the image has no jar of pyspark."""
    changed = {"Dockerfile": "RUN rm pyspark/jars/*\n"}
    assert [finding.path for finding in jar_checksums(EditedTree(PROJECT, changed))] == ["requirements/jars.cdx.json"]


def test_a_linter_that_fails_has_a_finding() -> None:
    """Whatever a program prints before it fails is the finding, and one that succeeds has none."""
    [finding] = run_linter(PROJECT, "a.sh", ["sh", "-c", "echo a.sh:1: wrong; exit 1"])
    assert finding.text == "\na.sh:1: wrong\n"
    assert not list(run_linter(PROJECT, "a.sh", ["true"]))


def test_a_missing_folder_is_an_error() -> None:
    """A rule for files that have moved does not pass because it reads none."""
    with pytest.raises(LookupError):
        PROJECT.below("no/such/folder")
