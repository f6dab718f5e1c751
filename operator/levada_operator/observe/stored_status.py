"""The status as it is stored. Its schema admits more than the operator writes, and others may have written it."""

from __future__ import annotations

from typing import Any, Final

from levada_operator.observe.objects import Body, read_time

_CHANGED: Final = "lastTransitionTime"
_TIMES: Final = frozenset((_CHANGED, "sampledAt", "startedAt", "progressAt", "at", "nextRetry"))


def readable_status(status: Body) -> dict[str, Any]:
    """Return a status without times that cannot be read, and without conditions that lack theirs."""
    readable: dict[str, Any] = _readable(status)
    if "conditions" in readable:
        readable["conditions"] = [c for c in readable["conditions"] if _CHANGED in c]
    return readable


def _readable(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _readable(each) for k, each in value.items() if k not in _TIMES or _is_time(each)}
    return [_readable(each) for each in value] if isinstance(value, list) else value


def _is_time(text: Any) -> bool:
    try:
        read_time(text)
    except (ValueError, OverflowError, TypeError, AttributeError):
        return False
    return True
