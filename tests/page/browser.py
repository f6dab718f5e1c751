"""A tab of a browser."""

from __future__ import annotations

from dataclasses import dataclass, field

from playwright.sync_api import Page

DESKTOP = {"width": 1280, "height": 900}


PHONE = {"width": 320, "height": 640}


@dataclass
class Tab:
    """A tab of a browser, the messages in its console, and the servers that it asked."""

    page: Page
    said: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def open(self, address: str) -> Page:
        """Open the page and wait until it shows figures."""
        self.page.goto(f"{address}/")
        self.page.locator("#figures").wait_for()
        return self.page
