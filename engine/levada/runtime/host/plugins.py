"""The classes of destinations and stores, found by their entry points, and their settings in a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Final, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from levada.destinations.interface import Destination
from levada.errors import InvalidManifest, NeedsOperator
from levada.local.extras import Extra, extra_with
from levada.runtime.destination_errors import describe_entry_point, destination_errors, plugin_errors
from levada.runtime.tables.places import TargetNameOf
from levada.spec import Manifests, TableSyncSpec
from levada.spec.destination import CustomDestination
from levada.spec.plugins import (
    DESTINATIONS,
    STORES,
    installed,
    plugin_problems,
    plugin_table_problems,
    settings_model,
    table_settings_model,
    validated_options,
)
from levada.spec.problems import invalid
from levada.spec.section import PluginSection, PluginTableSettings
from levada.stores.interface import PipelineStore, StoreContext

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Kind(Generic[_T]):
    """A kind of plug-in: its word in messages and codes, its entry-point group and its base class."""

    word: str
    group: str
    base: type[_T]
    public: str

    def named(self, name: str) -> type[_T]:
        """Return the class of this name. Raise InvalidManifest if no package provides it."""
        points = installed(self.group)
        if name not in points.names:
            raise InvalidManifest(
                "unknown_destination" if self.word == "destination" else "unknown_store",
                f"spec.{self.word}.custom.type: no {self.word} {name!r} is installed. Installed:"
                f" {', '.join(sorted(points.names)) or 'none'}",
                hint=f"install the package that provides {name!r} in the entry-point group {self.group}",
            )
        return self.load(points[name])

    def load(self, entry_point: EntryPoint) -> type[_T]:
        """Return the class that an entry point names.

        Raise NeedsOperator ``destination_broken`` or ``store_broken`` if it cannot be imported, is no subclass of the
        base class, or has settings that are no pydantic model.
        """
        what = describe_entry_point(entry_point)
        try:
            loaded: type[_T] = entry_point.load()
        except Exception as error:
            # The package may be another's, and may raise any exception when it is imported.
            if extra := _lacking_extra(entry_point, error):
                message = f"{self.word} {entry_point.name} needs packages that are not installed: {error}"
                raise self._broken(message, extra.install_command) from error
            hint = "reinstall the package with its dependencies, or contact its author"
            raise self._broken(f"{what} cannot be imported: {type(error).__name__}: {error}", hint) from error
        if not (isinstance(loaded, type) and issubclass(loaded, self.base)):
            raise self._broken(f"{what} is not a subclass of {self.public}")
        try:
            settings_model(loaded)
            table_settings_model(loaded)
        except TypeError as error:
            raise self._broken(f"{what}: {error}") from error
        return loaded

    def settings(self, plugin: type[_T], section: PluginSection, pipeline: str) -> BaseModel | None:
        """Return the section's options as an instance of the class's ``settings_model``.

        Raise InvalidManifest with the paths of invalid fields.
        """
        with plugin_errors(plugin, self.group, "settings_model"):
            try:
                return validated_options(settings_model(plugin), section.options)
            except ValidationError:
                problems = plugin_problems(self.group, ("spec", self.word, "custom"), section)
        raise invalid(problems, f"Pipeline {pipeline}")

    def _broken(self, message: str, hint: str = "contact the package's author") -> NeedsOperator:
        return NeedsOperator("destination_broken" if self.word == "destination" else "store_broken", message, hint=hint)


def _lacking_extra(entry_point: EntryPoint, error: Exception) -> Extra | None:
    """Return the extra of Levada that one of its own entry points lacks, or None."""
    own = entry_point.module.startswith("levada.")
    return extra_with(error.name) if own and isinstance(error, ModuleNotFoundError) and error.name else None


_DESTINATION: Final = _Kind(
    "destination",
    DESTINATIONS,
    Destination,  # type: ignore[type-abstract]  # the base of classes that entry points name
    "levada.destinations.Destination",
)
_STORE: Final = _Kind(
    "store",
    STORES,
    PipelineStore,  # type: ignore[type-abstract]  # as above
    "levada.stores.PipelineStore",
)


def destination_class(manifests: Manifests) -> type[Destination]:
    """Return the class of the manifest's destination. Raise InvalidManifest if no package provides its type."""
    return _DESTINATION.named(manifests.pipeline.spec.destination.type)


def load_destination(entry_point: EntryPoint) -> type[Destination]:
    """Return the destination's class that an entry point names. Raise NeedsOperator ``destination_broken``."""
    return _DESTINATION.load(entry_point)


def custom_store(manifests: Manifests, context: StoreContext) -> PipelineStore:
    """Return the store of another package that the manifest names."""
    section = manifests.pipeline.spec.store.custom
    assert section is not None
    kind = _STORE.named(section.type)
    settings = _STORE.settings(kind, section, context.pipeline)
    with plugin_errors(kind, STORES, "from_settings"):
        return kind.from_settings(settings, context)


def destination_settings(manifests: Manifests) -> BaseModel | None:
    """Return the settings of the manifest's destination, as an instance of its class's ``settings_model``.

    Raise InvalidManifest with the paths of invalid fields, and NeedsOperator ``destination_failed`` for a model that
    raises an exception of its own.
    """
    section = manifests.pipeline.spec.destination.section
    if not isinstance(section, CustomDestination):
        return section
    return _DESTINATION.settings(destination_class(manifests), section, manifests.pipeline.metadata.name)


def table_settings(manifests: Manifests, table: TableSyncSpec) -> BaseModel | None:
    """Return the destination's settings of one table, an instance of its class's ``table_settings_model``, or None.

    Raise InvalidManifest with the paths of invalid fields.
    """
    found = table.destination_section
    if found is None or not isinstance(found[1], PluginTableSettings):
        return None if found is None else found[1]
    kind, section = destination_class(manifests), found[1]
    with destination_errors(kind, "table_settings_model"):
        model = table_settings_model(kind)
        try:
            settings = None if model is None else validated_options(model, section.options)
        except ValidationError:
            settings = None
    if settings is None:
        name = manifests.pipeline.spec.destination.type
        problems = plugin_table_problems(name, ("spec", found[0]), section)
        raise invalid(problems, f"TableSync of {table.table.qualified}")
    return settings


def target_names(manifests: Manifests) -> TargetNameOf:
    """Return the function that maps a table to its name at the destination. The destination is not created."""
    kind, settings = destination_class(manifests), destination_settings(manifests)
    return partial(kind.planned_name, settings)


def former_names(manifests: Manifests, depended_on: str) -> TargetNameOf:
    """Return `target_names` with the settings of copies that depended on ``depended_on``, see `CopySettings`."""
    destination = manifests.pipeline.spec.destination
    kind, settings = destination_class(manifests), destination_settings(manifests)
    if not isinstance(destination.section, CustomDestination):
        # The first word is spec.onUnrepresentable.
        settings = destination.section_of_copies(depended_on.partition(" ")[2])
    return partial(kind.planned_name, settings)


def object_store(manifests: Manifests, secrets: Path | None) -> Mapping[str, str]:
    """Return the properties of the destination's object store. They may be secret."""
    reference = manifests.pipeline.spec.destination.section.credentials_secret_ref
    credentials = None if secrets is None or reference is None else secrets / reference.name
    kind, settings = destination_class(manifests), destination_settings(manifests)
    with destination_errors(kind, "object_store"):
        return kind.object_store(settings, credentials if credentials is not None and credentials.is_dir() else None)
