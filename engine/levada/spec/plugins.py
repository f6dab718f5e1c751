"""The settings models of destinations and stores, found by entry points.

A section of Levada's own destination is in every manifest's schema. Its module imports no driver of a database and no
Spark, so that the operator can import it. The model of another package's destination or store comes with its class,
which only the engine imports.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, distribution, entry_points
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from levada.spec.model import Model
from levada.spec.problems import Location, SpecProblem, explain
from levada.spec.section import DestinationSettings, DestinationTableSettings, PluginSection, PluginTableSettings

DESTINATIONS: Final = "levada.destinations"
"""The entry-point group of destinations. The name of an entry point is the destination's name in a manifest."""
STORES: Final = "levada.stores"
"""The entry-point group of stores. The name of an entry point is the store's name in a manifest."""


class _NoOptions(Model):
    """The options of a class without a ``settings_model``."""


def installed(group: str) -> EntryPoints:
    """Return the entry points of a group in all packages that this process can import."""
    return _installed(group, tuple(sys.path))


@lru_cache(maxsize=8)
def _installed(group: str, path: tuple[str, ...]) -> EntryPoints:
    # Each look reads a file of every package.
    return entry_points(group=group)


def _named(group: str, name: str) -> EntryPoint | None:
    return next(iter(installed(group).select(name=name)), None)


def own_sections(group: str) -> dict[str, type[DestinationSettings]]:
    """Return the sections of the group's entry points in Levada's own distribution, by name.

    Each is the class ``Settings`` in the module ``settings`` of the entry point's package.
    """
    own = distribution("levada").entry_points.select(group=group)
    return {e.name: import_module(f"{e.module}.settings").Settings for e in sorted(own, key=lambda e: e.name)}


def own_table_sections(group: str) -> dict[str, type[DestinationTableSettings]]:
    """Return the sections of a TableSync for the destinations of `own_sections` that have settings of tables, by name.

    Each is the class ``TableSettings`` in the destination's module ``settings``.
    """
    found = {name: import_module(section.__module__) for name, section in own_sections(group).items()}
    return {name: module.TableSettings for name, module in found.items() if hasattr(module, "TableSettings")}


def plugin_problems(group: str, location: Location, section: PluginSection) -> list[SpecProblem]:
    """Return the problems of a plug-in's options, each with the path of its field.

    There are none if the plug-in's class cannot be imported here. A start reports that.
    """
    found = _named(group, section.type)
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


def plugin_table_problems(name: str, location: Location, section: PluginTableSettings) -> list[SpecProblem]:
    """Return the problems of a table's settings for the destination ``name`` of another package.

    There are none if the destination's class cannot be imported here. A start reports that.
    """
    found = _named(DESTINATIONS, name)
    try:
        model = None if found is None else table_settings_model(found.load())
    except Exception:  # The package is not ours, and may raise any exception.
        return []
    if found is not None and model is None:
        return [SpecProblem(location, f"the destination {name} has no settings of tables")]
    try:
        if model is not None:
            validated_options(model, section.options)
    except ValidationError as error:
        return [SpecProblem((*location, "options", *p.location), p.text) for p in explain(error, model or _NoOptions)]
    except Exception:  # As above: the model is not ours.
        return []
    return []


def lacks_spark(section: PluginSection) -> bool:
    """Return True if the class of a destination can be imported here and has not the capability ``spark``."""
    found = _named(DESTINATIONS, section.type)
    try:
        return found is not None and found.load().capabilities.spark is False
    except Exception:  # The package is not ours, and may raise any exception.
        return False


def settings_model(plugin: object) -> type[BaseModel] | None:
    """Return the class's ``settings_model``, or None if it takes no options. Raise TypeError for any other value."""
    return _model(plugin, "settings_model")


def table_settings_model(plugin: object) -> type[BaseModel] | None:
    """Return the class's ``table_settings_model``, or None without one. Raise TypeError for any other value."""
    return _model(plugin, "table_settings_model")


def _model(plugin: object, name: str) -> type[BaseModel] | None:
    model = getattr(plugin, name, None)
    if model is None or (isinstance(model, type) and issubclass(model, BaseModel)):
        return model
    raise TypeError(f"{name} must be a subclass of pydantic.BaseModel or None, not {model!r}")


def validated_options(model: type[BaseModel] | None, options: Mapping[str, Any]) -> BaseModel | None:
    """Return the options as an instance of the model, or None without a model. Raise pydantic's ValidationError."""
    if model is None:
        _NoOptions.model_validate(options)
        return None
    return model.model_validate(options)
