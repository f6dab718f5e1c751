"""The extras of the package: which of them are installed, and what they lack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, metadata, requires, version

from packaging.requirements import Requirement

_DISTRIBUTION = "levada"


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra, or the package without extras if ``name`` is empty.

    ``installed`` has the versions of its packages, and ``lacking`` the requirements that no installed package meets.
    ``wanted`` is False if the extra was not installed: it has no package here that is not needed by others anyway.
    """

    name: str
    wanted: bool
    installed: Mapping[str, str]
    lacking: tuple[str, ...]

    @property
    def package(self) -> str:
        """The name by which pip installs it."""
        return f"{_DISTRIBUTION}[{self.name}]" if self.name else _DISTRIBUTION

    @property
    def install_command(self) -> str:
        """The command that installs it."""
        return f"pip install '{self.package}'"


def extra_names() -> list[str]:
    """Return the names of the package's extras."""
    return metadata(_DISTRIBUTION).get_all("Provides-Extra") or []


def installed_extra(name: str = "") -> Extra:
    """Return what is installed of an extra."""
    needed = [r for text in requires(_DISTRIBUTION) or () if _belongs(r := Requirement(text), name)]
    versions = {r.name: _version(r.name) for r in needed}
    installed = {package: found for package, found in versions.items() if found is not None}
    lacking = tuple(
        f"{r.name}{r.specifier}" for r in needed if not (found := versions[r.name]) or not r.specifier.contains(found)
    )
    return Extra(name, not name or not installed.keys() <= _needed_by_others(), installed, lacking)


def extra_with(module: str) -> Extra | None:
    """Return the extra that installs a module, or None.

    The name of the module is that of its package without hyphens.
    """
    for name in extra_names():
        needed = (Requirement(text) for text in requires(_DISTRIBUTION) or ())
        if any(_plain(r.name) == _plain(module) for r in needed if _belongs(r, name)):
            return installed_extra(name)
    return None


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _needed_by_others() -> set[str]:
    """Return the packages that other installed packages than Levada require, without their extras."""
    others = (found.requires or () for found in distributions() if found.name != _DISTRIBUTION)
    requirements = (Requirement(text) for texts in others for text in texts)
    return {r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})}


def _belongs(requirement: Requirement, extra: str) -> bool:
    """Return True if this machine needs the requirement for the extra, but not without it."""
    marker = requirement.marker
    always = marker is None or marker.evaluate({"extra": ""})
    return always if not extra else not always and marker is not None and marker.evaluate({"extra": extra})


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
