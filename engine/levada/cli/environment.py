"""Environment variables that libpq reads at each login, and that no parameter of a connection overrides."""

from __future__ import annotations

import os
from typing import Final

_VARIABLES: Final = ("PGSERVICE", "PGTZ", "PGDATESTYLE", "PGGEQO")


def forget_variables() -> None:
    """Remove the variables, so that the manifest alone says where and how to connect."""
    for name in _VARIABLES:
        os.environ.pop(name, None)
