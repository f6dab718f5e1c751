"""The watcher of a running engine's manifest file.

Changes of Hot fields and of TableSyncs are applied. Changes of other fields wait for a restart and are reported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from levada.errors import InvalidManifest, LevadaError, NeedsOperator
from levada.runtime.host.manifest_file import UTF_8_HINT
from levada.runtime.report.snapshot import fatal_progress
from levada.spec import Change, Manifests, changed_fields, load_manifests, manifest_digest, with_hot_fields
from levada.spec.resyncs import without_resyncs
from levada.status import ManifestProgress, WaitingField
from levada.values import QualifiedTable

_log = logging.getLogger(__name__)

_SAVE: Final = "correct the file and save it. The engine reads it again by itself"


@dataclass(frozen=True, slots=True)
class AcceptedChange:
    """The part of a changed manifest that a running engine applies.

    ``manifests`` run from now on. ``applied`` and ``waiting`` are the changed fields by their paths. Those in
    ``waiting`` take effect after a restart.
    """

    manifests: Manifests
    applied: Mapping[str, Change]
    waiting: Mapping[str, Change]


def accept_change(running: Manifests, new: Manifests, waits: Collection[QualifiedTable] = ()) -> AcceptedChange:
    """Return the part of a new manifest that a running engine applies: Hot fields, and all of TableSyncs. Pure.

    For the tables in ``waits``, fields of TableSyncs that copy a table again wait for a restart too.

    Raise InvalidManifest ``immutable_field_changed`` if an Immutable field differs, because that makes it another
    pipeline.
    """
    fields: dict[str, Change] = {
        f.removeprefix("."): c for f, c in changed_fields(running.pipeline, new.pipeline, "").items()
    }
    refused = sorted(field for field, change in fields.items() if change is Change.IMMUTABLE)
    if refused:
        raise InvalidManifest(
            "immutable_field_changed",
            f"{', '.join(refused)} cannot be changed, so the changed manifest is rejected as a whole",
            hint="revert the change, or create a new Pipeline",
        )
    waiting: dict[str, Change] = {field: change for field, change in fields.items() if change is not Change.HOT}
    hot: dict[str, Change] = {field: change for field, change in fields.items() if change is Change.HOT}
    taken = without_resyncs(running, new, waits) if waits else new
    waiting |= _changed_tables(taken, new)
    manifests = Manifests(with_hot_fields(running.pipeline, new.pipeline), taken.table_syncs)
    return AcceptedChange(manifests, hot | _changed_tables(running, taken), waiting)


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


class ManifestWatcher:
    """Polls the manifest's file. For one thread, except for `progress`. Without a ``path`` nothing ever changes.

    It compares contents. The file of a mounted ConfigMap is a symbolic link whose own times do not change.
    """

    def __init__(
        self,
        path: Path | None,
        running: Manifests,
        waits: Callable[[Manifests, Manifests], Collection[QualifiedTable]] = lambda running, new: (),
        digest: str = "",
    ) -> None:
        """``waits`` returns the tables that a change must not copy again before a restart with an approval.

        ``digest`` is that of the file that is running.
        """
        self.path = path
        self._waits = waits
        self._running = running
        self._seen: bytes | None = None
        self._judged: bytes | None = None
        self._progress = ManifestProgress(digest=digest)

    @property
    def running(self) -> Manifests:
        """Return the manifests that are in effect."""
        return self._running

    @property
    def progress(self) -> ManifestProgress:
        """Return the error of a rejected change, and the changes that wait for a restart. From any thread."""
        return self._progress

    def poll(self, apply: Callable[[Manifests], None]) -> None:
        """Call ``apply`` with the new manifests if the file has changed.

        A content counts when two polls in a row have read it, because the first may have read a half-written file. An
        error in it, or one that ``apply`` raises, is logged once for each content and kept in `progress`.
        """
        if self.path is None:
            return
        content = _read(self.path)
        stable, self._seen = content == self._seen, content
        if not stable or content == self._judged:
            return
        self._judged = content
        try:
            self._apply(self.path, content, apply)
        except LevadaError as error:
            shown = fatal_progress(error)
            assert shown is not None
            shown = replace(shown, solution=error.hint or _SAVE)
            self._progress = replace(self._progress, error=shown)
            _log.error("the changed manifest is rejected, and the previous one stays in effect: %s", error)

    def _apply(self, path: Path, content: bytes, apply: Callable[[Manifests], None]) -> None:
        if not content:
            raise NeedsOperator("manifest_file_missing", f"{path} does not exist, or is empty", hint="restore the file")
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise InvalidManifest("invalid_manifest", f"{path} is not UTF-8 text", hint=UTF_8_HINT) from None
        new = load_manifests(text, str(path))
        accepted = accept_change(self._running, new, self._waits(self._running, new))
        if accepted.applied:
            apply(accepted.manifests)
            self._running = accepted.manifests
            _log.info("taken up from the changed manifest: %s", _describe(accepted.applied))
        waiting = tuple(WaitingField(field, change.value) for field, change in sorted(accepted.waiting.items()))
        if waiting and waiting != self._progress.waiting:
            _log.warning("not taken up before a restart: %s", _describe(accepted.waiting))
        self._progress = ManifestProgress(waiting=waiting, digest=manifest_digest(content))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _describe(changes: Mapping[str, Change]) -> str:
    return ", ".join(f"{field} ({change.value})" for field, change in sorted(changes.items()))
