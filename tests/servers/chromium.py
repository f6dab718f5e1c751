"""Debian's Chromium without a window, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright
from tests.servers.debian import install

from levada.local.jars import cache_folder, only_process

# Without a font of its own, Chromium shows no text.
_PACKAGES = {"chromium": "/usr/bin/chromium", "fonts-dejavu-core": "/usr/share/fonts/truetype/dejavu"}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser. Root installs it where it is missing. Anyone else skips the test then."""
    path = _path()
    with sync_playwright() as playwright:
        # Chromium's sandbox does not start as root. The pages are those of the engine under test.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        # Else it draws with an emulated graphics card.
        arguments += ["--disable-gpu", "--disable-software-rasterizer"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


def _path() -> str:
    if os.geteuid() == 0 and shutil.which("apt-get"):
        with only_process(cache_folder() / "chromium"):
            install(_PACKAGES)
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("Chromium is missing: apt-get install chromium")
    return path
