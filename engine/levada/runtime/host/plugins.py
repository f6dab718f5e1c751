"""The classes of destinations and stores, found by their entry points, and their settings in a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from levada.destinations.interface import Destination
from levada.errors import InvalidManifest, NeedsOperator
from levada.runtime.destination_errors import describe_entry_point, destination_errors
from levada.runtime.tables.places import TargetNameOf
from levada.spec import Manifests
from levada.spec.destination import CustomDestination
from levada.spec.plugins import DESTINATIONS, plugin_problems, settings_model, validated_options
from levada.spec.problems import invalid

_T = TypeVar("_T")


def destination_class(manifests: Manifests) -> type[Destination]:
    """Return the class of the manifest's destination. Raise InvalidManifest if no package provides its type."""
    name = manifests.pipeline.spec.destination.type
    installed = entry_points(group=DESTINATIONS)
    if name not in installed.names:
        raise InvalidManifest(
            "unknown_destination",
            f"spec.destination.custom.type: no destination {name!r} is installed. Installed:"
            f" {', '.join(sorted(installed.names)) or 'none'}",
            hint=f"install the package that provides {name!r} in the entry-point group {DESTINATIONS}",
        )
    return load_destination(installed[name])


def load_destination(entry_point: EntryPoint) -> type[Destination]:
    """Return the destination's class that an entry point names.

    Raise NeedsOperator ``destination_broken`` if it cannot be imported, or is no subclass of `Destination`.
    """
    what = describe_entry_point(entry_point)
    try:
        loaded: type[Destination] = entry_point.load()
    except Exception as error:
        # The package is not ours, and may raise any exception when it is imported.
        raise NeedsOperator(
            "destination_broken",
            f"{what} cannot be imported: {type(error).__name__}: {error}",
            hint="reinstall the package with its dependencies, or contact its author",
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, Destination)):
        raise NeedsOperator(
            "destination_broken",
            f"{what} is not a subclass of levada.destinations.Destination",
            hint="contact the package's author",
        )
    return loaded


def destination_settings(manifests: Manifests) -> BaseModel | None:
    """Return the settings of the manifest's destination, as an instance of its class's ``settings_model``.

    Raise InvalidManifest with the paths of invalid fields, and NeedsOperator ``destination_failed`` for a model that
    raises an exception of its own.
    """
    section = manifests.pipeline.spec.destination.section
    if not isinstance(section, CustomDestination):
        return section
    kind = destination_class(manifests)
    with destination_errors(kind, "settings_model"):
        try:
            return validated_options(settings_model(kind), section.options)
        except ValidationError:
            problems = plugin_problems(DESTINATIONS, ("spec", "destination", "custom"), section)
    raise invalid(problems, f"Pipeline {manifests.pipeline.metadata.name}")


def target_names(manifests: Manifests) -> TargetNameOf:
    """Return the function that maps a table to its name at the destination. The destination is not created."""
    kind, settings = destination_class(manifests), destination_settings(manifests)
    return partial(kind.planned_name, settings)


def object_store(manifests: Manifests, secrets: Path | None) -> Mapping[str, str]:
    """Return the properties of the destination's object store. They may be secret."""
    reference = manifests.pipeline.spec.destination.section.credentials_secret_ref
    credentials = None if secrets is None or reference is None else secrets / reference.name
    kind, settings = destination_class(manifests), destination_settings(manifests)
    with destination_errors(kind, "object_store"):
        return kind.object_store(settings, credentials if credentials is not None and credentials.is_dir() else None)
