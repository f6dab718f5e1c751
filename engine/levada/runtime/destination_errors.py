"""Conversion of a destination plugin's exceptions, with the names of its package and entry point in the message."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points

from levada.destinations.interface import Destination
from levada.errors import LevadaError, NeedsOperator
from levada.spec.plugins import DESTINATIONS

_log = logging.getLogger(__name__)


@contextmanager
def destination_errors(destination: type[Destination], method: str) -> Iterator[None]:
    """Raise NeedsOperator ``destination_failed`` from any exception in the block that is no LevadaError."""
    try:
        yield
    except LevadaError:
        raise
    except Exception as error:
        _log.debug("%s.%s failed", destination.__name__, method, exc_info=True)
        words = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        raise NeedsOperator(
            "destination_failed",
            f"{method} of {_origin(destination)} raised {type(error).__name__}: {words}",
            hint="for the traceback: levada --debug check MANIFEST; correct the destination, or ask its author",
        ) from error


def describe_entry_point(entry_point: EntryPoint) -> str:
    """Return the entry point and its package, for messages."""
    package = "an unknown package" if entry_point.dist is None else f"package {entry_point.dist.name}"
    return f"entry point {entry_point.name} = {entry_point.value} of {package}"


def _origin(destination: type[Destination]) -> str:
    value = f"{destination.__module__}:{destination.__qualname__}"
    installed = (e for e in entry_points(group=DESTINATIONS) if e.value == value)
    if (found := next(installed, None)) is not None:
        return describe_entry_point(found)
    return f"class {destination.__module__}.{destination.__qualname__}"
