"""Helpers that several tests share: servers, engines, and readers of their state.

No module here has tests. A helper of one package of tests only is a module of that package.
"""

import pkgutil

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
