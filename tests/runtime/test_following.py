"""Changes of a manifest under a running engine, without running anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import samples
from tests.runtime.manifest_text import manifest_text

from levada.errors import InvalidManifest
from levada.runtime.host.approval import copied_tables, waiting_tables
from levada.runtime.host.manifest_watcher import ManifestWatcher, accept_change
from levada.spec import Change, Manifests, load_manifests, manifest_digest
from levada.status import PipelineState, TablePhase, WaitingField
from levada.values import QualifiedTable


def text(*table_syncs: dict[str, Any], **spec: Any) -> str:
    """Return a manifest with these differences."""
    return manifest_text("shop", *table_syncs, **spec)


BEFORE = load_manifests(text())
ORDERS = {"table": {"name": "orders"}}


def test_hot_fields_are_taken_up_and_others_wait() -> None:
    """Of one manifest both: what runs from then on has the one and not the other."""
    new = load_manifests(text(freshnessSeconds=3, source={"host": "other", "database": "shop"}))
    changed = accept_change(BEFORE, new)
    assert changed.applied == {"spec.freshnessSeconds": Change.HOT}
    assert changed.waiting == {"spec.source.host": Change.RESTART}
    assert changed.manifests.pipeline.spec.freshness_seconds == 3
    assert changed.manifests.pipeline.spec.source.host == "db"
    assert accept_change(changed.manifests, new).applied == {}


def test_all_of_a_table_sync_is_taken_up() -> None:
    """A TableSync that comes, changes or goes takes effect, also in fields that need a new copy."""
    one = load_manifests(text({**ORDERS, "mode": "Changelog", "suspend": True}))
    assert accept_change(BEFORE, one).applied == {"TableSync public.orders": Change.HOT}
    other = load_manifests(text({**ORDERS, "mode": "Upsert", "suspend": True}))
    assert accept_change(one, other).applied == {"TableSync public.orders spec.mode": Change.RESYNC}
    assert accept_change(other, BEFORE).manifests.table_syncs == ()


COPIED = {QualifiedTable("public", "orders")}


def test_without_an_approval_no_table_is_copied_again() -> None:
    """The fields that need a new copy wait, and all others of the TableSync are taken up. So it is when it goes."""
    one = load_manifests(text({**ORDERS, "mode": "Changelog", "suspend": True, "resyncNonce": 3}))
    changed = accept_change(BEFORE, one, COPIED)
    assert changed.waiting == {"TableSync public.orders spec.mode": Change.RESYNC}
    (taken,) = changed.manifests.table_syncs
    assert (taken.spec.mode, taken.spec.suspend, taken.spec.resync_nonce) == (None, True, 3)
    assert changed.applied == {"TableSync public.orders": Change.HOT}
    gone = accept_change(one, BEFORE, COPIED)
    (kept,) = gone.manifests.table_syncs
    assert (kept.spec.mode, kept.spec.suspend) == ("Changelog", False)
    assert gone.waiting == {"TableSync public.orders": Change.HOT}
    plain = load_manifests(text({**ORDERS, "suspend": True}))
    assert accept_change(plain, BEFORE, COPIED).waiting == {}


def test_a_first_copy_has_the_fields_of_its_table() -> None:
    """The columns that a new table excludes do not wait until another table's change is approved."""
    both = text({**ORDERS, "mode": "Changelog"}, {"table": {"name": "users"}, "columns": {"exclude": ["secret"]}})
    changed = accept_change(BEFORE, load_manifests(both), COPIED)
    assert changed.waiting == {"TableSync public.orders spec.mode": Change.RESYNC}
    taken = {t.spec.table.name: t.spec for t in changed.manifests.table_syncs}
    assert (taken["orders"].mode, taken["users"].columns.exclude) == (None, ("secret",))
    assert accept_change(BEFORE, load_manifests(both)).waiting == {}


def test_all_tables_count_as_copied_until_they_are_known() -> None:
    """A start that takes long is no moment at which a change needs no approval."""
    manual = load_manifests(text(approval="Manual"))
    changed = load_manifests(text({**ORDERS, "mode": "Changelog"}, approval="Manual"))
    starting = (None, samples.progress(state=PipelineState.STARTING), replace(samples.progress(), tables=()))
    assert [copied_tables(progress) for progress in starting] == [None, None, None]
    assert waiting_tables(manual, changed, None, secrets=None) == COPIED
    tables = samples.table(), samples.table(name="users", phase=TablePhase.INIT)
    copied = copied_tables(samples.progress(*tables))
    assert copied == COPIED
    assert waiting_tables(manual, changed, copied, secrets=None) == COPIED
    for phase in (TablePhase.DATA_SYNC, TablePhase.INIT):
        # A copy that begins again has a cost as well, also one that the engine will continue.
        under_way = samples.table(phase=phase, copy=samples.copying())
        assert copied_tables(samples.progress(under_way)) == COPIED
    assert waiting_tables(manual, changed, frozenset(), secrets=None) == frozenset()
    assert waiting_tables(manual, load_manifests(text({**ORDERS, "mode": "Changelog"})), None, secrets=None) == set()


def test_another_pipeline_is_refused() -> None:
    """A change of an immutable field keeps the whole manifest from taking effect. The error names the field."""
    new = load_manifests(text(freshnessSeconds=3, source={"host": "db", "database": "other"}))
    with pytest.raises(InvalidManifest, match=r"spec\.source\.database") as refused:
        accept_change(BEFORE, new)
    assert refused.value.code == "immutable_field_changed"


class Engine:
    """Takes what is handed on."""

    def __init__(self, path: Path) -> None:
        self.watcher = ManifestWatcher(path, BEFORE)
        self.taken: list[Manifests] = []

    def looks(self, times: int = 2) -> None:
        for _ in range(times):
            self.watcher.poll(self.taken.append)

    @property
    def error(self) -> str:
        error = self.watcher.progress.error
        return "" if error is None else error.code


def test_a_change_is_taken_up_once(tmp_path: Path) -> None:
    """A change takes effect once, when two reads in a row have found it.

    The manifest that runs already is no change.
    """
    path = tmp_path / "pipeline.yaml"
    path.write_text(text())
    engine = Engine(path)
    engine.looks()
    assert engine.taken == []
    path.write_text(text(freshnessSeconds=3))
    engine.looks(1)
    assert engine.taken == []
    engine.looks(3)
    assert [m.pipeline.spec.freshness_seconds for m in engine.taken] == [3]


def test_progress_has_the_digest_of_what_is_in_effect(tmp_path: Path) -> None:
    """The digest is that of the file as soon as it is in effect. A rejected file changes nothing about it."""
    path = tmp_path / "pipeline.yaml"
    path.write_text(text())
    engine = Engine(path)
    for content, counts in ((text(), True), (text(freshnessSeconds=3), True), ("kind: Pipeline", False)):
        path.write_text(content)
        engine.looks()
        assert (engine.watcher.progress.digest == manifest_digest(content.encode())) is counts
    assert engine.watcher.progress.digest == manifest_digest(text(freshnessSeconds=3).encode())


def test_a_mounted_file_is_a_link_that_is_swapped(tmp_path: Path) -> None:
    """As the kubelet updates a ConfigMap's volume: by its content, whatever the links' own times are."""
    for name, content in (("one", text()), ("two", text(freshnessSeconds=3))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pipeline.yaml").write_text(content)
    data, path = tmp_path / "..data", tmp_path / "pipeline.yaml"
    data.symlink_to("one")
    path.symlink_to("..data/pipeline.yaml")
    engine = Engine(path)
    engine.looks()
    (tmp_path / "..data_tmp").symlink_to("two")
    (tmp_path / "..data_tmp").replace(data)
    engine.looks()
    assert len(engine.taken) == 1


def test_a_bad_manifest_leaves_the_old_one_running(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A bad or missing manifest makes one error in the log and in progress, until there is a good one."""
    path = tmp_path / "pipeline.yaml"
    engine = Engine(path)
    for content, code in ((None, "manifest_file_missing"), ("kind: Pipeline", "invalid_manifest")):
        caplog.clear()
        if content is not None:
            path.write_text(content)
        engine.looks(4)
        assert engine.error == code
        assert len(caplog.records) == 1
    shown = engine.watcher.progress.error
    assert shown is not None
    assert "levada retry" not in shown.solution
    assert shown.solution
    path.write_text(text(freshnessSeconds=3))
    engine.looks()
    assert (engine.error, len(engine.taken)) == ("", 1)


def test_what_waits_for_a_restart_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Progress has the field and its class until the change is taken back. The log has them once."""
    path = tmp_path / "pipeline.yaml"
    path.write_text(text(driver={"mode": "Cluster"}))
    engine = Engine(path)
    engine.looks(4)
    assert engine.watcher.progress.waiting == (WaitingField("spec.driver.mode", "Restart"),)
    assert sum("before a restart" in r.message for r in caplog.records) == 1
    path.write_text(text())
    engine.looks()
    assert not engine.watcher.progress.waiting
    assert engine.taken == []
