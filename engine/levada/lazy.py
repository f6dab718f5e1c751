"""Exports of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package. ``modules`` has the module of each exported name."""

    def load(name: str) -> Any:
        if name in modules:
            return getattr(importlib.import_module(modules[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[], list[str]]:
    """Return the ``__dir__`` of a package, which has the exported names that were not imported yet, too."""

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return names
