"""libpq's environment variables. Those of a login count. Others do not change what a manifest says."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final

from psycopg import pq

from levada.errors import NeedsOperator

_LOGIN: Final = frozenset({"user", "password", "passfile"})
_UNNAMED: Final = "service"
"""An empty name of a service is an error of libpq."""
_SETTINGS: Final[Mapping[str, tuple[str, str]]] = {
    "TimeZone": ("UTC", "PGTZ"),
    "DateStyle": ("ISO", "PGDATESTYLE"),
    "IntervalStyle": ("postgres", "PGOPTIONS"),
}
"""Settings that a server reports, the value that Levada sets up to a comma, and the variable that overrides it."""


def defaults_over_environment() -> dict[str, str]:
    """Return libpq's own defaults of the parameters that the environment sets, other than those of the login."""
    found = {}
    for option in pq.Conninfo.get_defaults():
        keyword, variable = option.keyword.decode(), (option.envvar or b"").decode()
        if variable in os.environ and keyword not in _LOGIN and keyword != _UNNAMED:
            found[keyword] = (option.compiled or b"").decode()
    return found


def require_settings(reported: Callable[[str], str | None], where: str) -> None:
    """Raise NeedsOperator ``session_settings_overridden`` if values would be read in another form.

    ``reported`` returns a setting that the server reports at the login. libpq sends those of its environment variables
    after the ones of the connection. A proxy may leave some out.
    """
    for name, (wanted, variable) in _SETTINGS.items():
        value = reported(name)
        if value is not None and value.partition(",")[0] != wanted:
            raise NeedsOperator(
                "session_settings_overridden",
                f"a session at {where} has {name} {value} although Levada sets {wanted}",
                hint=f"unset {variable} in the environment of the process, and set the host to the server itself",
            )
