"""The reference page is the models'."""

from __future__ import annotations

from pathlib import Path

from levada.spec.reference import reference


def test_page_is_up_to_date() -> None:
    """docs/reference.md is that of the models. If not: python -m levada.spec.reference > docs/reference.md."""
    page = Path(__file__).parents[2] / "docs" / "reference.md"
    assert page.read_text() == reference()
