"""The page of a driver, through the tunnel that its docs describe."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from playwright.sync_api import expect
from tests.cluster.node.place import TABLES, Place
from tests.cluster.node.tunnels import tunnel
from tests.rigs.waiting import LIMIT_S
from tests.servers.chromium import chromium

PATIENCE_MS = 60_000


def test_the_page_of_a_driver(shop: Place) -> None:
    """It shows the tables of the Pipeline. Through the tunnel, a request under the name of another site is refused."""
    with tunnel(shop) as address:
        with chromium() as browser:
            page = browser.new_page()
            said: list[str] = []
            page.on("console", lambda message: said.append(message.text))
            page.goto(f"{address}/")
            expect(page.locator("#tables-body tr")).to_have_count(len(TABLES), timeout=PATIENCE_MS)
            expect(page.locator("#right .sentence")).to_have_text(f"All {len(TABLES)} tables are Ready")
            assert said == []
        with urllib.request.urlopen(f"{address}/v1/history", timeout=LIMIT_S) as answer:
            assert json.load(answer)["version"] == 1
        request = urllib.request.Request(f"{address}/v1/progress", headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(request, timeout=LIMIT_S)
