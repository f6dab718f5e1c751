"""The tutorials show the code of the examples, which run in the tests."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Final

from tests.lint.tree import Finding, Tree, line_of

TUTORIALS: Final = {
    "docs/tutorials/custom-destination.md": (
        "examples/custom-destination/custom_destination.py",
        "tests/examples/test_custom_destination.py",
    ),
    "docs/tutorials/custom-store.md": (
        "examples/custom-store/custom_store.py",
        "tests/examples/test_custom_store.py",
    ),
}
"""Each page, with the example and its test."""


def tutorials(tree: Tree) -> Iterator[Finding]:
    """Report Python of a tutorial that is no part of its example or of the test. Blank lines do not count."""
    for path, sources in TUTORIALS.items():
        page = tree.text(path)
        code = "\n".join(_lines(tree.text(source)) for source in sources)
        blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        if len(blocks) < 5:
            yield Finding(path, 0, "the page has fewer than 5 blocks of Python, show the parts of the example")
        for block in blocks:
            if not any(textwrap.indent(_lines(block), " " * depth) in code for depth in (0, 4)):
                yield Finding(path, line_of(page, f"```python\n{block}"), f"the block is not in {' or '.join(sources)}")


def _lines(code: str) -> str:
    return "\n".join(line for line in code.splitlines() if line.strip())
