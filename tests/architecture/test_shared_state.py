"""Threads and layers pass frozen values to each other."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from levada.destinations import Capabilities, DestinationContext, TableTarget
from levada.postgres.identity import SourceIdentity
from levada.runtime.config import PipelineConfig
from levada.runtime.inbox import Message
from levada.values import Watermark

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


@pytest.mark.parametrize("passed", PASSED)
def test_what_is_passed_is_frozen(passed: type) -> None:
    """The engine cannot change what a destination or another thread holds, so each change is a call or a message."""
    for kind in reachable(passed, set()):
        assert typing.cast(Any, kind).__dataclass_params__.frozen, kind


def test_messages_are_frozen() -> None:
    """A stage cannot change a report that it has put into the supervisor's queue."""
    for message in subclasses(Message):
        assert typing.cast(Any, message).__dataclass_params__.frozen, message


def subclasses(kind: type) -> Iterator[type]:
    """Yield the classes that derive from a class, directly or not."""
    for derived in kind.__subclasses__():
        yield derived
        yield from subclasses(derived)
