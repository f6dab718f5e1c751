"""A dedicated copy: the copy of one table by another process than the driver that has ordered it."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

from levada.errors import NeedsOperator
from levada.runtime.copies.job import CopyJob, open_order
from levada.runtime.copies.outcomes import Copied
from levada.runtime.host.assembly import assemble, open_store, pipeline_config
from levada.runtime.host.table_requests import resolve
from levada.runtime.resources.destination_start import start_up_with_retries
from levada.runtime.resources.task_runner import open_task_runner
from levada.runtime.source.ownership import require_owner
from levada.runtime.source.requestable_tables import known_tables
from levada.spec import Manifests


class DedicatedCopy:
    """The dedicated copy of the table ``name``. ``table`` is its full name, and ``is_ordered`` if there is an order.

    ``order`` is the token of the only order to take. Empty: any.

    Raises NeedsOperator ``unknown_table`` if the pipeline has no such table, ``not_the_owner`` if the pipeline belongs
    to another owner, and ``store_is_memory`` if another process cannot read the store.
    """

    def __init__(
        self,
        manifests: Manifests,
        name: str,
        *,
        secrets: Path | None = None,
        work_dir: Path | None = None,
        order: str = "",
    ) -> None:
        if manifests.pipeline.spec.store.memory is not None:
            raise NeedsOperator(
                "store_is_memory",
                "the pipeline's state is in the memory of its engine, where a copy by another process cannot reach it",
                hint="use spec.store.postgres or spec.store.configMap",
            )
        self._manifests = manifests
        self._secrets = secrets
        self._work_dir = work_dir
        self._order = order
        config = pipeline_config(manifests, secrets=secrets, work_dir=work_dir)
        known = known_tables(config)
        (self.table,) = resolve([name], known)
        self._id = known[self.table]
        with closing(open_store(manifests, config, secrets, outwaits=True)) as store:
            require_owner(config, store)
            self.is_ordered = open_order(store, self._id, order) is not None

    def run(self, cancelled: threading.Event) -> Copied | None:
        """Copy the table and answer the order. Raise the copy's error.

        Return None if there is no unanswered order, or if the driver completes a copy whose ranges are all read.

        The copy ends early once ``cancelled`` is set. If the destination asks for Spark, it is started, which takes 15
        seconds.
        """
        with assemble(self._manifests, secrets=self._secrets, work_dir=self._work_dir) as parts:
            parts.destination.keep_metadata_in(parts.store)
            start_up_with_retries(parts.destination, parts.config.retries, cancelled)
            tasks = open_task_runner(parts.destination, parts.spark, f"levada {parts.config.name}")
            try:
                job = CopyJob(parts.config, parts.store, parts.destination, tasks, cancelled, self._order)
                return job.run(self._id, self.table)
            finally:
                tasks.close()
                parts.destination.shutdown()
