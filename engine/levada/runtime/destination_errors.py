"""Conversion of a destination plugin's exceptions, with the names of its package and entry point in the message."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import EntryPoint
from typing import Final

from levada.destinations.interface import Destination
from levada.errors import LevadaError, NeedsOperator
from levada.spec.plugins import DESTINATIONS, STORES, installed

_log = logging.getLogger(__name__)

_WORDS: Final = {DESTINATIONS: "destination", STORES: "store"}


def destination_errors(destination: type[Destination], method: str) -> AbstractContextManager[None]:
    """Raise NeedsOperator ``destination_failed`` from any exception in the block that is no LevadaError."""
    return plugin_errors(destination, DESTINATIONS, method)


@contextmanager
def plugin_errors(plugin: type, group: str, method: str) -> Iterator[None]:
    """Raise NeedsOperator ``destination_failed`` or ``store_failed``, by the entry-point group, as above."""
    word = _WORDS[group]
    try:
        yield
    except LevadaError:
        raise
    except Exception as error:
        _log.debug("%s.%s failed", plugin.__name__, method, exc_info=True)
        words = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        raise NeedsOperator(
            "destination_failed" if group == DESTINATIONS else "store_failed",
            f"{method} of {_origin(plugin, group)} raised {type(error).__name__}: {words}",
            hint=f"correct the {word}, or ask its author. For the traceback: levada --debug check MANIFEST",
        ) from error


def describe_entry_point(entry_point: EntryPoint) -> str:
    """Return the entry point and its package, for messages."""
    package = "an unknown package" if entry_point.dist is None else f"package {entry_point.dist.name}"
    return f"entry point {entry_point.name} = {entry_point.value} of {package}"


def _origin(plugin: type, group: str) -> str:
    value = f"{plugin.__module__}:{plugin.__qualname__}"
    if (found := next((e for e in installed(group) if e.value == value), None)) is not None:
        return describe_entry_point(found)
    return f"class {plugin.__module__}.{plugin.__qualname__}"
