"""The tutorials show the code of the examples, which run in the tests."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("subject", ["destination", "store"])
def test_the_code_of_a_tutorial_is_that_of_its_example(subject: str) -> None:
    """Each block of Python is a part of the example or of its test, line by line. Blank lines do not count."""
    page = (_ROOT / "docs" / "tutorials" / f"custom-{subject}.md").read_text("utf-8")
    sources = [
        _ROOT / "examples" / f"custom-{subject}" / f"custom_{subject}.py",
        _ROOT / "tests" / "examples" / f"test_custom_{subject}.py",
    ]
    code = "\n".join(_lines(path.read_text("utf-8")) for path in sources)
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 5
    for block in blocks:
        indented = (textwrap.indent(_lines(block), " " * depth) for depth in (0, 4))
        assert any(part in code for part in indented), f"not in the example:\n{block}"


def _lines(code: str) -> str:
    return "\n".join(line for line in code.splitlines() if line.strip())
