"""Everything that would keep a pipeline from starting, from this machine to the lake, found without changing anything.

The order is that of a start: this machine, the source, the store, the staging area, the destination. Each part is
checked even if another one failed, so that one run reports every problem.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from levada.destinations.interface import Destination
from levada.errors import LevadaError, NeedsOperator
from levada.postgres.catalog import list_tables
from levada.postgres.preflight import Problem, Severity
from levada.runtime.config import PipelineConfig
from levada.runtime.manifest import make_destination, open_store, pipeline_config
from levada.runtime.placement import place_problems
from levada.runtime.retries import mends_itself
from levada.runtime.source import check_source
from levada.runtime.spark import borrowed_session
from levada.runtime.staging_area import open_staging
from levada.spec import Manifests
from levada.stores.phases import DataSync, Init
from levada.stores.readiness import check_postgres_store


def start_problems(manifests: Manifests, *, secrets: Path | None, work_dir: Path) -> tuple[Problem, ...]:
    """Return every problem that a start would meet, errors first.

    The destination is opened, which starts Spark where the destination needs it. A destination that does not answer is
    a warning once tables were copied: such a pipeline starts and stages changes until the destination answers.
    """
    try:
        config = pipeline_config(manifests, secrets=secrets, work_dir=work_dir)
    except LevadaError as error:
        return (_problem(error),)
    problems = [*_raised(lambda: _check_folder(work_dir)), *check_source(config)]
    begun = False
    try:
        begun = _has_copies(manifests, config)
    except LevadaError as error:
        problems.append(_problem(error))
    problems += _raised(lambda: open_staging(config.staging).probe())
    problems += _destination_problems(manifests, secrets, config, begun=begun)
    return tuple(sorted(problems, key=lambda p: p.severity is Severity.WARNING))


def _check_folder(work_dir: Path) -> None:
    """Raise NeedsOperator ``work_dir_unusable`` unless the folder is writable, or can be created."""
    existing = next(p for p in (work_dir, *work_dir.parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise NeedsOperator(
            "work_dir_unusable",
            f"the work folder {work_dir} cannot be written",
            hint="name another folder with --work-dir DIR",
        )


def _has_copies(manifests: Manifests, config: PipelineConfig) -> bool:
    """Return True if the store holds a table that was copied; raise what keeps the store from being used."""
    store = manifests.pipeline.spec.store
    if store.postgres is not None:
        return check_postgres_store(config.source, config.name, store.postgres.schema_name)
    opened = open_store(manifests, config)
    try:
        opened.load_table_replication_states()
        return any(not isinstance(p, Init | DataSync) for p in opened.get_table_replication_states().values())
    finally:
        opened.close()


def _destination_problems(
    manifests: Manifests, secrets: Path | None, config: PipelineConfig, *, begun: bool
) -> Iterator[Problem]:
    try:
        with _opened(manifests, secrets, config) as destination:
            for error, refused in _place_problems(config, destination):
                yield _problem(error, Severity.ERROR if refused else Severity.WARNING)
            destination.startup()
            destination.check()
    except LevadaError as error:
        waits = begun and mends_itself(error)
        yield _problem(error, Severity.WARNING if waits else Severity.ERROR)


def _place_problems(config: PipelineConfig, destination: Destination) -> tuple[tuple[NeedsOperator, bool], ...]:
    try:
        with config.source.connect(application="check") as connection:
            selected = sorted(table for table in list_tables(connection) if config.selects(table))
    except LevadaError:
        # The check of the source has reported it.
        return ()
    return tuple(place_problems(config, destination.target, selected))


@contextmanager
def _opened(manifests: Manifests, secrets: Path | None, config: PipelineConfig) -> Iterator[Destination]:
    with (
        tempfile.TemporaryDirectory(prefix="levada-check-") as scratch,
        borrowed_session(f"levada check {config.name}", conf=manifests.pipeline.spec.driver.spark_conf) as spark,
    ):
        destination, _ = make_destination(manifests, config, secrets, spark, Path(scratch))
        try:
            yield destination
        finally:
            destination.shutdown()


def _raised(check: Callable[[], object]) -> Iterator[Problem]:
    try:
        check()
    except LevadaError as error:
        yield _problem(error)


def _problem(error: LevadaError, severity: Severity = Severity.ERROR) -> Problem:
    return Problem(severity, error.code, error.message, error.hint)
