"""Checks of the return values of a destination's methods. A value of another type than the declared one is an error."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from levada.errors import NeedsOperator
from levada.values import Durability, Watermark

Method = Callable[..., Any]


def require_durability(answer: object, method: Method) -> Durability:
    """Return the result of a write. Raise NeedsOperator ``destination_contract`` unless it is a Durability."""
    if isinstance(answer, Durability):
        return answer
    raise _broken(answer, method, "Durability.DURABLE, or Durability.ACCEPTED while the write is not durable yet")


def require_flag(answer: object, method: Method) -> bool:
    """Return the result of a shadow copy's step. Raise NeedsOperator ``destination_contract`` unless it is bool."""
    if isinstance(answer, bool):
        return answer
    raise _broken(answer, method, "True or False")


def require_watermark(answer: object, method: Method) -> Watermark | None:
    """Return the result of `applied`. Raise NeedsOperator ``destination_contract`` for another type."""
    if answer is None or isinstance(answer, Watermark):
        return answer
    raise _broken(answer, method, "a Watermark or None")


def perform(method: Method, *args: object) -> None:
    """Call a method that returns None. Raise NeedsOperator ``destination_contract`` if it returned an awaitable.

    Calling an ``async def`` function does not run it, so a table would not be dropped, for example.
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
    # Report only the type, because the value may contain rows.
    returned = "None" if answer is None else f"an object of type {type(answer).__name__}"
    return NeedsOperator(
        "destination_contract", f"{owner}.{method.__name__} returned {returned}, not {wanted}", hint=hint
    )
