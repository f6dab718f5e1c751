"""Debian's packages, installed by root where a test needs them and they are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from levada.local.jars import cache_folder, only_process

_POLICY: Final = Path("/usr/sbin/policy-rc.d")


def lacking(packages: Mapping[str, str]) -> list[str]:
    """Return the packages that are not there."""
    return [name for name, file in packages.items() if not Path(file).exists()]


def install(packages: Mapping[str, str]) -> None:
    """Install the packages that are not there, and start none of their services."""
    if not (wanted := lacking(packages)):
        return
    print(f"installing {', '.join(wanted)}", file=sys.stderr, flush=True)
    # Another process may be installing: what it tells Debian of services must not end before this one does.
    with only_process(cache_folder() / "debian"), _no_services():
        apt("update")
        apt("install", "--yes", "--no-install-recommends", *wanted)


def apt(*arguments: str, cwd: Path | None = None) -> None:
    """Run apt-get. It waits for another one to end."""
    subprocess.run(
        ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600", *arguments],
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        stdout=subprocess.DEVNULL,
        check=True,
        cwd=cwd,
    )


@contextmanager
def _no_services() -> Iterator[None]:
    """Keep Debian from starting services, unless the machine does so already."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)
