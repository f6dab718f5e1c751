"""Threads share no mutable state but queues, the store, and references to immutable values."""

from __future__ import annotations

import ast
import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from levada.destinations import Capabilities, DestinationContext, TableTarget
from levada.postgres.identity import SourceIdentity
from levada.runtime.config import PipelineConfig
from levada.runtime.stages import messages
from levada.values import Watermark

ENGINE = Path(__file__).parents[2] / "engine" / "levada"
MUTABLE = {
    "dict",
    "list",
    "set",
    "bytearray",
    "defaultdict",
    "deque",
    "MutableMapping",
    "MutableSequence",
    "MutableSet",
}
PASSED = (Capabilities, DestinationContext, SourceIdentity, TableTarget, Watermark, PipelineConfig)
"""Classes whose objects one thread or layer passes to another that keeps them."""


def reachable(kind: Any, seen: set[type]) -> Iterator[type]:
    """Yield the dataclass, and those that its fields hold, directly or in a container."""
    for part in typing.get_args(kind):
        yield from reachable(part, seen)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)) or kind in seen:
        return
    seen.add(kind)
    yield kind
    names = dict.fromkeys(("SparkSession",), object)
    for hint in typing.get_type_hints(kind, localns=names).values():
        yield from reachable(hint, seen)


def mutable_fields(text: str) -> Iterator[str]:
    """Yield the fields of frozen dataclasses in a module that hold a mutable container."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef) or not any("frozen=True" in ast.unparse(d) for d in node.decorator_list):
            continue
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and mutable(field.annotation):
                yield f"{node.name}.{ast.unparse(field.target)}"


def mutable_mappings(text: str) -> Iterator[str]:
    """Yield the parameters of a module's functions that may be a mapping which the caller changes later."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            for arg in [*node.args.args, *node.args.kwonlyargs]:
                if arg.annotation is not None and "MutableMapping" in ast.unparse(arg.annotation):
                    yield f"{node.name}({arg.arg})"


def mutable(annotation: ast.expr) -> bool:
    """Return True if the annotation names a mutable container."""
    return any(isinstance(n, ast.Name) and n.id in MUTABLE for n in ast.walk(annotation))


@pytest.mark.parametrize("passed", PASSED)
def test_what_is_passed_is_frozen(passed: type) -> None:
    """The engine cannot change what a destination or another thread holds, so each change is a call or a message."""
    for kind in reachable(passed, set()):
        assert typing.cast(Any, kind).__dataclass_params__.frozen, kind


def test_messages_are_frozen() -> None:
    """A stage cannot change a report that it has put into the supervisor's queue."""
    for report in typing.get_args(messages.Report):
        assert typing.cast(Any, report).__dataclass_params__.frozen, report


@pytest.mark.parametrize("package", ["runtime", "apply", "destinations", "segments", "copy", "capture", "schema"])
def test_frozen_values_hold_no_mutable_containers(package: str) -> None:
    """A frozen dataclass has tuples, frozen sets and read-only mappings. No function gets a mapping to change."""
    modules = sorted((ENGINE / package).rglob("*.py"))
    found = {
        str(module.relative_to(ENGINE)): names
        for module in modules
        if (names := [*mutable_fields(text := module.read_text()), *mutable_mappings(text)])
    }
    assert found == {}
