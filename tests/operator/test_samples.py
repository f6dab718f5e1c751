"""The samples are as the engine writes them."""

from __future__ import annotations

from tests.operator.samples import document, owner, spec


def test_documents_of_samples_are_the_engines() -> None:
    """The samples have the form that the engine's own progress writes."""
    from tests.runtime.samples import progress as engine_progress

    theirs = engine_progress().to_json()
    ours = document()
    assert theirs.keys() >= ours.keys()
    assert theirs["slot"].keys() == ours["slot"].keys()
    assert theirs["tables"][0].keys() >= ours["tables"][0].keys()
    assert owner(**spec()).name == "shop"
