"""The page that shows the progress in a browser. Its files are served as they are here, without a build step.

``page.js`` requests ``/v1/progress`` and ``/v1/history``, and draws what they return with the other scripts. Texts of
a document become text nodes, never HTML. The page has no data of its own, so it is served without the token, and asks
for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from importlib import resources
from types import MappingProxyType
from typing import Final

from levada.runtime.report.responses import Response

_TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INDEX: Final = "index.html"
_REVALIDATE: Final = "no-cache"
"""A browser asks for the files again each time, so that an upgraded engine has no page of its predecessor."""


@cache
def page_files() -> Mapping[str, Response]:
    """Return the response of each path: ``/`` and that of each script, style sheet and picture."""
    found: dict[str, Response] = {}
    for file in resources.files(__name__).iterdir():
        kind = _TYPES.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            path = "/" if file.name == _INDEX else f"/{file.name}"
            found[path] = Response(HTTPStatus.OK, kind, file.read_bytes(), _REVALIDATE)
    return MappingProxyType(found)
