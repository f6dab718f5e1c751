"""The check of the destination before a start."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from levada.destinations.answers import perform
from levada.destinations.interface import Destination
from levada.errors import LevadaError, NeedsOperator
from levada.postgres.catalog import read_table_ids
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.problems import Problem
from levada.runtime.config import PipelineConfig
from levada.runtime.destination_errors import destination_errors
from levada.runtime.host.assembly import make_destination
from levada.runtime.host.plugins import destination_class, destination_settings
from levada.runtime.host.pod import TERMINATION_LOG
from levada.runtime.host.problem_parts import problem_of, raised, warning_if
from levada.runtime.host.stored_state import StoredState
from levada.runtime.resources.bare_jvm import bare_jvm
from levada.runtime.resources.spark import borrowed_session, has_session
from levada.runtime.source.preparation import covered_tables
from levada.runtime.tables.cut_rules import check_cuts
from levada.runtime.tables.places import check_sources, place_problems, taken_places
from levada.runtime.tables.requests import CopySettings
from levada.runtime.tables.verification_record import check_continuous
from levada.spec import Manifests
from levada.values import QualifiedTable, TableId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def destination_problems(
    manifests: Manifests, secrets: Path | None, config: PipelineConfig, stored: StoredState
) -> Iterator[Problem]:
    """Yield the problems of the destination and of the places of its tables."""
    begun = stored.begun
    try:
        with _opened(manifests, secrets, config) as destination:
            yield from raised(lambda: check_cuts(config, destination))
            yield from raised(lambda: check_continuous(config, destination))
            for error, refused in _place_problems(config, destination, stored):
                unknown = begun and not stored.copied_as
                yield problem_of(error, warning_if(unknown or not refused))
            try:
                with destination_errors(type(destination), "startup"):
                    perform(destination.startup)
            except LevadaError as error:
                yield problem_of(error, warning_if(begun and error.retried))
                return
            # A start checks no more than `startup` does. Once tables are copied, each is parked for its own errors.
            with destination_errors(type(destination), "check"):
                yield from raised(lambda: perform(destination.check), warning_if(begun))
            known = _known(config, stored)
            yield from raised(lambda: check_sources(config, destination, known), warning_if(begun))
            new = [name for name, before in known.values() if before is None]
            # A run parks these tables alone.
            alone = warning_if(stored.known or TERMINATION_LOG in os.environ)
            yield from (problem_of(taken, alone) for taken in taken_places(config, destination, new))
    except LevadaError as error:
        yield problem_of(error, warning_if(begun and error.retried))


def _place_problems(
    config: PipelineConfig, destination: Destination, stored: StoredState
) -> tuple[tuple[NeedsOperator, bool], ...]:
    return tuple(place_problems(config, destination.target_name, _known(config, stored)))


def _known(config: PipelineConfig, stored: StoredState) -> Mapping[TableId, tuple[QualifiedTable, CopySettings | None]]:
    """Return the name of each covered table, and the settings of its last copy. The check of the source reports errors.

    There is no table if the source does not answer.
    """
    try:
        with SESSIONS.session(config.source, "check") as connection:
            ids = read_table_ids(connection, covered_tables(config, connection))
    except LevadaError:
        return {}
    return {id_: (name, stored.copied_as.get(id_)) for name, id_ in ids.items()}


@contextmanager
def _opened(manifests: Manifests, secrets: Path | None, config: PipelineConfig) -> Iterator[Destination]:
    kind, session, jvm = destination_class(manifests), _no_session(), None
    conf, jars = manifests.pipeline.spec.driver.spark_conf, kind.jars() if kind.capabilities.spark else ()
    defaults = kind.spark_conf(destination_settings(manifests)) if kind.capabilities.spark else {}
    if kind.capabilities.checks_without_spark and not has_session():
        jvm = bare_jvm(conf=conf, defaults=defaults, jars=jars)
    if kind.capabilities.spark and jvm is None:
        session = borrowed_session(f"levada check {config.name}", conf=conf, defaults=defaults, jars=jars)
    with tempfile.TemporaryDirectory(prefix="levada-check-") as scratch, session as spark:
        destination = make_destination(manifests, config, secrets, spark, Path(scratch), only_checks=True, jvm=jvm)
        try:
            yield destination
        finally:
            with destination_errors(type(destination), "shutdown"):
                destination.shutdown()


def _no_session() -> AbstractContextManager[SparkSession | None]:
    return nullcontext()
