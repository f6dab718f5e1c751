"""HTTP requests past the proxies of the environment, which lead to the internet and not to a host nearby."""

from __future__ import annotations

import urllib.request
from http.client import HTTPResponse
from typing import Any


def open_directly(
    request: urllib.request.Request, timeout_s: float, *handlers: urllib.request.BaseHandler
) -> HTTPResponse:
    """Send the request to its own host, and return the answer, which the caller closes.

    Raise HTTPError for an answer of 400 and above, OSError and HTTPException as `urllib.request` does.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *handlers)
    answer: Any = opener.open(request, timeout=timeout_s)
    assert isinstance(answer, HTTPResponse)
    return answer
