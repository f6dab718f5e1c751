"""The settings models of destinations and stores, found by entry points.

A section of Levada's own destination is in every manifest's schema. Its module imports no driver of a database and no
Spark, so that the operator can import it. The model of another package's destination or store comes with its class,
which only the engine imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import distribution, entry_points
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from levada.spec.model import Model
from levada.spec.problems import Location, SpecProblem, explain
from levada.spec.section import DestinationSettings, PluginSection

DESTINATIONS: Final = "levada.destinations"
"""The entry-point group of destinations. The name of an entry point is the destination's name in a manifest."""
STORES: Final = "levada.stores"
"""The entry-point group of stores. The name of an entry point is the store's name in a manifest."""


class _NoOptions(Model):
    """The options of a class without a ``settings_model``."""


def own_sections(group: str) -> dict[str, type[DestinationSettings]]:
    """Return the sections of the group's entry points in Levada's own distribution, by name.

    Each is the class ``Settings`` in the module ``settings`` of the entry point's package.
    """
    own = distribution("levada").entry_points.select(group=group)
    return {e.name: import_module(f"{e.module}.settings").Settings for e in sorted(own, key=lambda e: e.name)}


def plugin_problems(group: str, location: Location, section: PluginSection) -> list[SpecProblem]:
    """Return the problems of a plug-in's options, each with the path of its field.

    There are none if the plug-in's class cannot be imported here. A start reports that.
    """
    found = next(iter(entry_points(group=group, name=section.type)), None)
    try:
        model = None if found is None else settings_model(found.load())
        if found is not None:
            validated_options(model, section.options)
    except ValidationError as error:
        return [
            SpecProblem((*location, "options", *problem.location), problem.text)
            for problem in explain(error, model or _NoOptions)
        ]
    except Exception:  # The package is not ours, and may raise any exception.
        return []
    return []


def settings_model(plugin: object) -> type[BaseModel] | None:
    """Return the class's ``settings_model``, or None if it takes no options. Raise TypeError for any other value."""
    model = getattr(plugin, "settings_model", None)
    if model is None or (isinstance(model, type) and issubclass(model, BaseModel)):
        return model
    raise TypeError(f"settings_model must be a subclass of pydantic.BaseModel or None, not {model!r}")


def validated_options(model: type[BaseModel] | None, options: Mapping[str, Any]) -> BaseModel | None:
    """Return the options as an instance of the model, or None without a model. Raise pydantic's ValidationError."""
    if model is None:
        _NoOptions.model_validate(options)
        return None
    return model.model_validate(options)
