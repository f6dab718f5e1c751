"""The manifest's file under a running engine: what of a change is taken up, and what is told of the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from levada.errors import InvalidManifest, LevadaError, NeedsOperator
from levada.runtime.progress import ManifestProgress
from levada.runtime.report.snapshot import fatal_progress
from levada.spec import Change, Manifests, changed_fields, load_manifests, with_hot_fields

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Changed:
    """What becomes of a changed manifest: what runs from now on, the fields taken up, those that need a restart."""

    manifests: Manifests
    taken: dict[str, Change]
    waiting: dict[str, Change]


def take_up(running: Manifests, new: Manifests) -> Changed:
    """Decide what of a new manifest a running engine takes up: Hot fields, and all of TableSyncs. Pure.

    Raise InvalidManifest ``immutable_field_changed`` if it is another pipeline's.
    """
    fields: dict[str, Change] = {
        f.removeprefix("."): c for f, c in changed_fields(running.pipeline, new.pipeline, "").items()
    }
    refused = sorted(field for field, change in fields.items() if change is Change.IMMUTABLE)
    if refused:
        raise InvalidManifest(
            "immutable_field_changed",
            f"{', '.join(refused)} cannot be changed, so nothing of the changed manifest is taken up",
            hint="take the change back, or make a new Pipeline",
        )
    waiting: dict[str, Change] = {field: change for field, change in fields.items() if change is not Change.HOT}
    hot: dict[str, Change] = {field: change for field, change in fields.items() if change is Change.HOT}
    taken = hot | _changed_tables(running, new)
    return Changed(Manifests(with_hot_fields(running.pipeline, new.pipeline), new.table_syncs), taken, waiting)


def _changed_tables(running: Manifests, new: Manifests) -> dict[str, Change]:
    old = {t.spec.table.qualified: t.spec for t in running.table_syncs}
    now = {t.spec.table.qualified: t.spec for t in new.table_syncs}
    changes: dict[str, Change] = {}
    for table in sorted(old.keys() | now.keys()):
        before, after = old.get(table), now.get(table)
        if before is None or after is None:
            changes[f"TableSync {table}"] = Change.HOT
        else:
            fields = changed_fields(before, after).items()
            changes |= {f"TableSync {table} {field}": change for field, change in fields}
    return changes


class ManifestFollower:
    """Looks at the manifest's file; for one thread, but for `progress`.

    By content: a mounted ConfigMap's file is a link to a link that is put in the place of another.
    """

    def __init__(self, path: Path, running: Manifests) -> None:
        self._path = path
        self._running = running
        self._seen: bytes | None = None
        self._judged: bytes | None = None
        self._progress = ManifestProgress()

    @property
    def running(self) -> Manifests:
        """Return what runs."""
        return self._running

    @property
    def progress(self) -> ManifestProgress:
        """Return what is not taken up; from any thread."""
        return self._progress

    def look(self, apply: Callable[[Manifests], None]) -> None:
        """Hand what is to run from now on to ``apply`` if the file has changed; an error of either is told once.

        A content is judged when two looks in a row have found it: before, it may be half written.
        """
        content = self._read()
        stable, self._seen = content == self._seen, content
        if not stable or content == self._judged:
            return
        self._judged = content
        try:
            self._take_up(content, apply)
        except LevadaError as error:
            self._progress = replace(self._progress, error=fatal_progress(error))
            _log.error("the changed manifest is not taken up, the earlier one keeps running: %s", error)

    def _take_up(self, content: bytes, apply: Callable[[Manifests], None]) -> None:
        if not content:
            raise NeedsOperator("manifest_file_missing", f"{self._path} is not there, or empty")
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise InvalidManifest("invalid_manifest", f"{self._path} is not UTF-8 text") from None
        changed = take_up(self._running, load_manifests(text, str(self._path)))
        if changed.taken:
            apply(changed.manifests)
            self._running = changed.manifests
            _log.info("taken up from the changed manifest: %s", _told(changed.taken))
        waiting = tuple((field, change.value) for field, change in sorted(changed.waiting.items()))
        if waiting and waiting != self._progress.waiting:
            _log.warning("not taken up before a restart: %s", _told(changed.waiting))
        self._progress = ManifestProgress(waiting=waiting)

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError:
            return b""


def _told(changes: dict[str, Change]) -> str:
    return ", ".join(f"{field} ({change.value})" for field, change in sorted(changes.items()))
