"""Checks of a destination's answers at run time: what a method returned is believed only if it is of its type."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from levada.errors import NeedsOperator
from levada.values import Durability, Watermark

Method = Callable[..., Any]


def require_durability(answer: object, method: Method) -> Durability:
    """Return the answer of a write. Raise NeedsOperator ``destination_contract`` unless it is a Durability."""
    if isinstance(answer, Durability):
        return answer
    raise _broken(answer, method, "Durability.DURABLE, or Durability.ACCEPTED while the write is not durable yet")


def require_flag(answer: object, method: Method) -> bool:
    """Return the answer of a step of a shadow copy. Raise NeedsOperator ``destination_contract`` unless it is bool."""
    if isinstance(answer, bool):
        return answer
    raise _broken(answer, method, "True or False")


def require_watermark(answer: object, method: Method) -> Watermark | None:
    """Return the answer of `applied`. Raise NeedsOperator ``destination_contract`` for another type."""
    if answer is None or isinstance(answer, Watermark):
        return answer
    raise _broken(answer, method, "a Watermark or None")


def perform(method: Method, *args: object) -> None:
    """Call a method without an answer. Raise NeedsOperator ``destination_contract`` if it returned an awaitable.

    An ``async def`` does nothing when it is called, so the table would not be dropped, for example.
    """
    answer = method(*args)
    if inspect.isawaitable(answer):
        raise _broken(answer, method, "None")


def _broken(answer: object, method: Method, wanted: str) -> NeedsOperator:
    owner = type(getattr(method, "__self__", None)).__name__
    hint = f"return {wanted}, then restart the pipeline"
    if inspect.isawaitable(answer):
        hint = f"define {method.__name__} with def instead of async def, and {hint}"
    if inspect.iscoroutine(answer):
        answer.close()
    # The type alone: a value may hold rows.
    returned = "None" if answer is None else f"an object of type {type(answer).__name__}"
    return NeedsOperator(
        "destination_contract", f"{owner}.{method.__name__} returned {returned}, not {wanted}", hint=hint
    )
