"""State that a process keeps for all that runs in it, so that one test may change the outcome of another.

`PROCESS_STATE` of `tests.lint.process_state_names` has each place with the reason for which no order of tests matters.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.lint.process_state_names import PROCESS_STATE
from tests.lint.shared_state import MUTABLE
from tests.lint.tree import Finding, Tree

CODE: Final = ("engine/levada", "operator/levada_operator")
NAMES: Final = "tests/lint/process_state_names.py"
_MUTABLE_CALLS: Final = MUTABLE | frozenset(
    {
        *("Counter", "OrderedDict", "WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "count", "cycle"),
        *("Lock", "RLock", "Event", "Semaphore", "local", "ContextVar"),
        *("Queue", "SimpleQueue", "ThreadPoolExecutor", "CollectorRegistry", "Gauge", "Histogram"),
    }
)
_CACHES: Final = frozenset({"cache", "lru_cache"})
_OF_THE_INTERPRETER: Final = frozenset(
    {
        *("gc.freeze", "gc.enable", "gc.disable", "gc.set_threshold", "signal.signal", "atexit.register"),
        *("os.chdir", "os.umask", "os.putenv", "os.environ.update", "os.environ.setdefault", "os.environ.pop"),
        *("resource.setrlimit", "socket.setdefaulttimeout", "locale.setlocale", "time.tzset", "os.environ.clear"),
        *("sys.setswitchinterval", "sys.setrecursionlimit", "sys.addaudithook", "faulthandler.enable"),
        *("warnings.simplefilter", "warnings.filterwarnings", "os.register_at_fork", "pa.set_memory_pool"),
    }
)
"""Functions that change what the whole process has."""
_IMMUTABLE_BASES: Final = frozenset({"NamedTuple", "Enum", "StrEnum", "IntEnum", "Protocol", "TypedDict", "int", "str"})


def process_state(tree: Tree) -> Iterator[Finding]:
    """Report state of a whole process that `PROCESS_STATE` does not have, and names there that the code has no more."""
    mutable = _mutable_classes(tree)
    seen = set()
    for path in tree.below(*CODE):
        for line, name in _found(tree, path, mutable):
            places = {path, f"{path}:{name}"}
            seen |= places
            if PROCESS_STATE.keys().isdisjoint(places):
                text = f"{name} outlives each pipeline and each test of the process, pass it, or add it to {NAMES}"
                yield Finding(path, line, text)
    for place in sorted(PROCESS_STATE.keys() - seen):
        # A tree of few files, which tests of rules have, lacks most places.
        if not tree.has(place.partition(":")[0]) and not tree.has(NAMES):
            continue
        yield Finding(NAMES, 0, f"{place} does not exist any more, remove it")


def _found(tree: Tree, path: str, mutable: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each object, cache and global variable, and of each change of the interpreter."""
    module = tree.module(path)
    for body, prefix in [(module.tree, ""), *((c, f"{c.name}.") for c in module.nodes(ast.ClassDef))]:
        for node in body.body:
            for name in _bound_to_mutable(node, mutable, is_class=bool(prefix)):
                yield node.lineno, prefix + name
    for function in module.nodes(ast.FunctionDef):
        if any(_name(d.func if isinstance(d, ast.Call) else d) in _CACHES for d in function.decorator_list):
            yield function.lineno, function.name
    for statement in module.nodes(ast.Global):
        yield from ((statement.lineno, name) for name in statement.names)
    for call in module.nodes(ast.Call):
        if ast.unparse(call.func) in _OF_THE_INTERPRETER:
            yield call.lineno, ast.unparse(call.func)
    for target in module.nodes(ast.Subscript):
        if isinstance(target.ctx, ast.Store | ast.Del) and ast.unparse(target.value) == "os.environ":
            yield target.lineno, "os.environ"


def _bound_to_mutable(node: ast.stmt, mutable: frozenset[str], *, is_class: bool) -> Iterator[str]:
    """Yield the name that an assignment binds to a mutable object. A field of an instance is none."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        is_shared = not is_class or "ClassVar" in ast.unparse(node.annotation)
        if is_shared and _is_mutable(node.value, mutable):
            yield ast.unparse(node.target)
    elif isinstance(node, ast.Assign) and _is_mutable(node.value, mutable):
        yield from map(ast.unparse, node.targets)


def _is_mutable(value: ast.expr, mutable: frozenset[str]) -> bool:
    """Return True for a container that begins empty, and for a new object that may change."""
    if isinstance(value, ast.Call):
        return _name(value.func.value if isinstance(value.func, ast.Subscript) else value.func) in mutable
    return isinstance(value, ast.Dict | ast.List) and not ast.unparse(value).strip("[]{}")


def _mutable_classes(tree: Tree) -> frozenset[str]:
    """Return the names of the project's classes whose objects may change, and of those of others."""
    bases, frozen = {}, set(_IMMUTABLE_BASES)
    for path in tree.below(*CODE):
        for node in tree.module(path).nodes(ast.ClassDef):
            bases[node.name] = {_name(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases}
            if node.name.endswith("Error") or any("frozen=True" in ast.unparse(d) for d in node.decorator_list):
                frozen.add(node.name)
    while derived := {name for name, of in bases.items() if name not in frozen and of & frozen}:
        frozen |= derived
    return (bases.keys() - frozen) | _MUTABLE_CALLS


def _name(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
