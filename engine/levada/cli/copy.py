"""`levada copy`: the process of a dedicated copy. The operator runs it in Jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from levada.cli.exit_codes import Exit
from levada.cli.output import console
from levada.cli.signals import StopSignals
from levada.cli.tables import known_tables, resolve
from levada.errors import NeedsOperator
from levada.runtime.copies.job import CopyJob, open_order
from levada.runtime.destination_errors import destination_errors
from levada.runtime.host.assembly import assemble, open_store, pipeline_config
from levada.runtime.source.ownership import require_owner
from levada.spec import Manifests
from levada.values import QualifiedTable, TableId

_POLL_S: Final = 0.2


def copy(manifests: Manifests, secrets: Path | None, work_dir: Path, name: str) -> Exit:
    """Copy the table if the pipeline's driver has ordered a copy by another process. Raise the error that ended it."""
    if manifests.pipeline.spec.store.memory is not None:
        raise NeedsOperator(
            "store_is_memory",
            "the pipeline's state is in the memory of its engine, where a copy by another process cannot reach it",
            hint="use spec.store.postgres or spec.store.configMap",
        )
    config = pipeline_config(manifests, secrets=secrets, work_dir=work_dir)
    known = known_tables(config)
    (table,) = resolve([name], known)
    store = open_store(manifests, config)
    try:
        require_owner(config, store)
        if open_order(store, known[table]) is None:
            # Return before Spark starts, which takes 15 seconds.
            return _nothing_to_do(table)
    finally:
        store.close()
    return _copy(manifests, secrets, work_dir, table, known[table])


def _copy(manifests: Manifests, secrets: Path | None, work_dir: Path, table: QualifiedTable, id_: TableId) -> Exit:
    cancelled = threading.Event()
    with (
        StopSignals() as signals,
        assemble(manifests, secrets=secrets, work_dir=work_dir) as parts,
        _cancel_on_signal(signals, cancelled),
    ):
        with destination_errors(type(parts.destination), "startup"):
            parts.destination.startup()
        try:
            job = CopyJob(parts.config, parts.store, parts.destination, parts.spark, cancelled)
            copied = job.run(id_, table)
        finally:
            parts.destination.shutdown()
    if copied is None:
        return _nothing_to_do(table)
    console().print(f"{table}: copied as of {copied.lsn}", markup=False)
    return Exit.OK


@contextmanager
def _cancel_on_signal(signals: StopSignals, cancelled: threading.Event) -> Iterator[None]:
    """Set ``cancelled`` when a signal is received during the block."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_S):
            if signals.received is not None:
                cancelled.set()
                return

    thread = threading.Thread(target=watch, name="levada-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _nothing_to_do(table: QualifiedTable) -> Exit:
    console().print(f"{table}: no dedicated copy is ordered", markup=False)
    return Exit.OK
