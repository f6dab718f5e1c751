"""For each test a tab that fails the test by what its console says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, expect
from tests.page.browser import DESKTOP, Tab
from tests.rigs.waiting import LIMIT_S

expect.set_options(timeout=1000 * LIMIT_S)


@pytest.fixture
def context(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Return a function that makes a profile of its own, in English and without colours of the night."""
    made = []

    def make(**options: Any) -> BrowserContext:
        opened = browser.new_context(**{"viewport": DESKTOP, "locale": "en-GB", "timezone_id": "UTC", **options})
        opened.set_default_timeout(1000 * LIMIT_S)
        made.append(opened)
        return opened

    yield make
    for one in made:
        one.close()


@pytest.fixture
def tab(context: Callable[..., BrowserContext]) -> Iterator[Callable[..., Tab]]:
    """Return a function that opens a tab. After the test, no tab may have had an error or asked another server.

    Failed requests are no errors: some tests end the engine.
    """
    tabs = []

    def make(**options: Any) -> Tab:
        made = Tab(context(**options).new_page())
        made.page.on("console", lambda message: made.said.append(f"{message.type}: {message.text}"))
        made.page.on("pageerror", lambda error: made.said.append(f"pageerror: {error}"))
        made.page.on("dialog", lambda dialog: made.said.append(f"dialog: {dialog.message}"))
        made.page.on("request", lambda request: made.hosts.add(urlsplit(request.url).hostname or ""))
        tabs.append(made)
        return made

    yield make
    for one in tabs:
        assert [words for words in one.said if "Failed to load resource" not in words] == []
        assert one.hosts <= {"127.0.0.1"}
