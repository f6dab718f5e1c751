"""The encoding in which the process names files."""

from __future__ import annotations

import os
import sys
from typing import Final

from levada.errors import NeedsOperator

_VARIABLES: Final = ("LC_ALL", "LC_CTYPE", "LANG")
"""The first one that is set decides."""


def require_utf8() -> None:
    """Raise NeedsOperator ``locale_not_utf8`` if Python names files in another encoding than Arrow and Java do."""
    encoding = sys.getfilesystemencoding()
    if encoding == "utf-8":
        return
    variable = next((v for v in _VARIABLES if os.environ.get(v)), _VARIABLES[0])
    raise NeedsOperator(
        "locale_not_utf8",
        f"{variable}={os.environ.get(variable, '')} lets Python name files in {encoding}, and not in UTF-8",
        hint=f"export {variable}=C.UTF-8",
    )
