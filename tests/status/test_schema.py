"""The JSON schema in the docs is that of the document."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from levada.status import History
from levada.status.schema import history_schema, json_schema

HERE = Path(__file__).parent
DOCUMENTS = sorted(file.name for file in (HERE / "golden").iterdir())
TYPES: dict[str, tuple[type, ...]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}


def test_the_schema_is_up_to_date() -> None:
    """The file is generated. If it differs: python -m levada.status.schema > docs/progress.schema.json."""
    file = HERE.parents[1] / "docs" / "progress.schema.json"
    assert file.read_text() == json.dumps(json_schema(), indent=2) + "\n"


def test_the_schema_of_the_history_is_up_to_date() -> None:
    """The file is generated. If it differs: python -m levada.status.schema history > docs/history.schema.json."""
    file = HERE.parents[1] / "docs" / "history.schema.json"
    assert file.read_text() == json.dumps(history_schema(), indent=2) + "\n"
    check(History().to_json(), history_schema())


@pytest.mark.sampled
@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_have_the_form_of_the_schema(name: str) -> None:
    """Every key of a document is in the schema, every key of the schema is in the document, and all types are right."""
    check(json.loads((HERE / "golden" / name).read_text()), json_schema())


def test_a_wrong_document_does_not_pass() -> None:
    """The check of the test above notices another type, a missing key and an additional one."""
    document = json.loads((HERE / "golden" / "full.json").read_text())
    for wrong in ({"at": 5}, {"added": 1}, {"slot": {}}, {"version": 2}, {"epoch": None}):
        with pytest.raises(AssertionError):
            check(document | wrong, json_schema())


def check(value: Any, schema: dict[str, Any], where: str = "document") -> None:
    """Raise AssertionError unless the value has the form of the schema, and all of its keys."""
    if "$ref" in schema:
        schema = json_schema()["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    if "anyOf" in schema:
        assert any(passes(value, one, where) for one in schema["anyOf"]), where
        return
    assert isinstance(value, TYPES[schema["type"]]), where
    assert value == schema.get("const", value), where
    assert value in schema.get("enum", [value]), where
    assert "pattern" not in schema or re.search(schema["pattern"], value), where
    if "properties" in schema:
        assert value.keys() == schema["properties"].keys() == set(schema["required"]), where
        for key, one in schema["properties"].items():
            check(value[key], one, f"{where}.{key}")
    for item in value if "items" in schema else ():
        check(item, schema["items"], f"{where}[]")


def passes(value: Any, schema: dict[str, Any], where: str) -> bool:
    """Return True if the value has the form of the schema."""
    try:
        check(value, schema, where)
    except AssertionError:
        return False
    return True
