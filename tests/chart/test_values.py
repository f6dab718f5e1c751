"""Values are described, validated before anything is installed, and listed in the README."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.helm import CHART, run, template

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
BEGIN, END = "<!-- values -->\n", "<!-- /values -->\n"

REFUSED: dict[str, dict[str, Any]] = {
    "misspelt": {"watchNamespace": ["data"]},
    "misspelt within": {"image": {"tagg": "1"}},
    "one namespace as text": {"watchNamespaces": "data"},
    "no name of a namespace": {"watchNamespaces": ["Data!"]},
    "a namespace twice": {"watchNamespaces": ["data", "data"]},
    "an unknown pull policy": {"image": {"pullPolicy": "Sometimes"}},
    "a digest that is none": {"image": {"digest": "sha256:abc"}},
    "a pull secret as text": {"image": {"pullSecrets": ["registry"]}},
    "no repository": {"image": {"repository": ""}},
    "a switch as text": {"crds": {"install": "yes"}},
    "an annotation that is no text": {"podAnnotations": {"a": 1}},
    "two pods away": {"podDisruptionBudget": {"maxUnavailable": 2}},
    "a replica more": {"replicaCount": 2},
    "no update at all": {"updatePolicy": {"maxConcurrent": 0}},
    "an unknown level": {"logLevel": "trace"},
    "a variable as text": {"extraEnv": ["A=1"]},
    "an interval without a unit": {"metrics": {"serviceMonitor": {"interval": "30"}}},
    "a port that is none": {"networkPolicy": {"apiServerPorts": [70000]}},
    "no port": {"networkPolicy": {"apiServerPorts": []}},
    "an amount that is none": {"resources": {"limits": {"memory": "half"}}},
    "a negative amount": {"resources": {"requests": {"cpu": -1}}},
    "no name of an account": {"serviceAccount": {"name": "Ops_Account"}},
    "no name of a Secret": {"driverToken": {"secretName": "driver tokens"}},
    "no name of a driver's namespace": {"driverToken": {"namespaces": ["Data"]}},
    "no name of a class": {"priorityClassName": "High!"},
    "no prefix of names": {"fullnameOverride": "Levada_1"},
    "a repository with a space": {"image": {"repository": "my levada"}},
    "no tag": {"image": {"tag": "v1 beta"}},
    "an alert at nothing": {"metrics": {"prometheusRule": {"lagSeconds": 0}}},
}


def walk(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield every schema with its path, list items under ``[]``."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from walk(field, (*path, name))
    if isinstance(schema.get("items"), dict) and "properties" in schema["items"]:
        yield from walk(schema["items"], (*path, "[]"))


def table() -> str:
    """Return the README's table of values: the schema's descriptions, the defaults of values.yaml."""
    lines = ["| Value | Default | Meaning |\n|---|---|---|\n"]
    for path, schema in walk(SCHEMA):
        leaf = path and "[]" not in path and path[0] != "global" and ("properties" not in schema)
        if leaf:
            default: Any = VALUES
            for name in path:
                default = default.get(name, {}) if isinstance(default, dict) else default
            shown = json.dumps(default)
            lines.append(f"| `{'.'.join(path)}` | `{shown}` | {schema['description']} |\n")
    return "".join(lines)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    """A value that cannot be meant is refused by helm, before it asks a cluster."""
    done = template(tmp_path, REFUSED[name], check=False)
    assert done.returncode
    assert "don't meet the specifications of the schema" in done.stderr


def test_everything_is_described_and_closed() -> None:
    """Each value has a description that is a sentence, and no object takes keys that it does not know of."""
    for path, schema in walk(SCHEMA):
        assert schema["description"].endswith("."), path
        if "properties" in schema:
            assert schema["additionalProperties"] is False, path


def test_values_and_schema_have_the_same_keys() -> None:
    """values.yaml has every value that there is."""

    def compare(values: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        assert values.keys() <= schema["properties"].keys(), path
        missing = schema["properties"].keys() - values.keys() - {"global"}
        assert not missing, path
        for name, value in values.items():
            if "properties" in schema["properties"][name]:
                compare(value, schema["properties"][name], f"{path}.{name}")

    compare(VALUES, SCHEMA, "")


def test_readme() -> None:
    """The README's table is that of the values. If not: python -m tests.chart.test_values."""
    text = (CHART / "README.md").read_text()
    assert text.partition(BEGIN)[2].partition(END)[0] == table()


if __name__ == "__main__":
    path = CHART / "README.md"
    head, _, rest = path.read_text().partition(BEGIN)
    path.write_text(head + BEGIN + table() + END + rest.partition(END)[2])
    sys.exit()


def test_values_of_an_older_chart_are_refused_by_name() -> None:
    """With ``helm upgrade --reuse-values`` they lack a section that came later. No template fails on it."""
    sections = [(name,) for name, value in VALUES.items() if isinstance(value, dict) and value]
    sections += [("metrics", name) for name, value in VALUES["metrics"].items() if isinstance(value, dict)]
    for *above, name in [*sections, ("watchNamespaces",)]:
        refused = run("template", "levada", CHART, "--set", f"{'.'.join([*above, name])}=null", check=False)
        assert f"missing property '{name}'" in refused.stderr or not refused.returncode, (name, refused.stderr)
