"""Iceberg's Java API in Spark's JVM: conversions of values, and of exceptions to Levada's errors."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from levada.destinations.iceberg.compiled import install_local_files, table_opener
from levada.destinations.iceberg.java_causes import Cause, Reason, reason_of
from levada.errors import AccessDenied, DestinationChanged, LevadaError, NeedsOperator, Transient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from levada.destinations.check_jvm import CheckJvm

JavaObject = Any
"""py4j has no types."""

_SQL_ERROR: Final = re.compile(r"(?!Unchecked).*SQL\w*Exception")
"""Names of ``java.sql.SQLException`` and of the drivers' subclasses. Iceberg's own exception has no SQLSTATE."""
_FRAMES: Final = 15
"""The innermost methods that are looked at to find what an exception was thrown in."""
_CATALOGS: Final = "spark.sql.catalog"
_CHECK_KEYS: Final = (
    "check the keys in the Secret of spec.destination.iceberg.credentialsSecretRef, or the pod's identity,"
    " and what they may do"
)
_NAMESPACES: Final = 64
"""The most namespaces that are kept. Tables have few."""
_CHECK_LAKE: Final = "if this persists, check that the catalog and the storage of the lake answer"
_CLOCK_WENT_BACK: Final = (
    "Invalid snapshot timestamp",
    "Invalid update timestamp",
    "Expected sorted snapshot log entries",
)
"""Messages of Iceberg's TableMetadata. It rejects a commit that is more than a minute older than the previous one."""
_REJECTED: Final = (
    "ValidationException",
    "BadRequestException",
    "IllegalArgumentException",
    "UnsupportedOperationException",
    "CherrypickAncestorCommitException",
    "UnprocessableEntityException",
    "UnsupportedFileSystemException",
)


_NOT_THERE: Final = ("NoSuchTableException", "NoSuchIcebergTableException", "NoSuchNamespaceException")
"""Names of exceptions for a missing table or namespace. The second is Hive's, for a table of another format."""


class CommitConflict(Transient):
    """Another writer committed to the table first. This commit had no effect."""


class CommitUnknown(Transient):
    """The result of the commit is unknown until the table is read again."""


class Missing(Transient):
    """The table or namespace does not exist."""


class JavaNames:
    """A package or class whose members are looked up once. py4j asks the JVM for each use of a name.

    A static field is read once, so only constants may be used.
    """

    def __init__(self, named: JavaObject) -> None:
        self._named = named

    def __getattr__(self, name: str) -> JavaObject:
        from py4j.java_gateway import JavaClass, JavaPackage

        found = getattr(self._named, name)
        known = JavaNames(found) if isinstance(found, JavaPackage | JavaClass) else found
        setattr(self, name, known)
        return known

    def __call__(self, *arguments: JavaObject) -> JavaObject:
        """Return a new object of the class."""
        return self._named(*arguments)


class Jvm:
    """Access to the packages of the JVM, and conversions of values.

    ``catalog`` are the settings of a session for the catalog.
    """

    def __init__(self, spark: SparkSession, catalog: Mapping[str, str] | None = None) -> None:
        for key, value in (catalog or {}).items():
            spark.conf.set(key, value)
        self.session: JavaObject = spark._jsparkSession
        self._settings: Mapping[str, str] = {}
        self._open(spark.sparkContext._gateway, spark._jvm, spark.sparkContext._jsc.hadoopConfiguration())

    @classmethod
    def without_spark(cls, jvm: CheckJvm, catalog: Mapping[str, str]) -> Self:
        """Return the access to a JVM without a session. ``catalog`` is that of a session."""
        made = cls.__new__(cls)
        made.session = None
        made._settings = {**jvm.settings, **catalog}
        made._open(jvm.gateway, jvm.gateway.jvm, jvm.hadoop_conf())
        return made

    def _open(self, gateway: JavaObject, jvm: JavaObject, hadoop_conf: JavaObject) -> None:
        self._gateway, self._jvm, self.hadoop_conf = gateway, jvm, hadoop_conf
        self.iceberg: JavaObject = JavaNames(jvm.org.apache.iceberg)
        self.path: JavaObject = jvm.org.apache.hadoop.fs.Path
        self._java: JavaObject = JavaNames(jvm.java)
        self._namespaces: dict[tuple[str, ...], JavaObject] = {}
        install_local_files(jvm, hadoop_conf)

    def actions(self) -> JavaObject:
        """Return Iceberg's actions in Spark.

        They run threads that need Spark's active session. A Java thread inherits it from the thread that starts it, and
        the calling thread may have none, so it is set here.
        """
        self._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(self.session)
        return self.iceberg.spark.actions.SparkActions.get(self.session)

    def open_catalog(self, name: str, properties: Mapping[str, str]) -> JavaObject:
        """Return a new catalog with the configuration of the session's catalog of this name. The caller closes it."""
        if self.session is None:
            # As SparkUtil.hadoopConfCatalogOverrides does it.
            conf, prefix = (
                self._jvm.org.apache.hadoop.conf.Configuration(self.hadoop_conf),
                f"{_CATALOGS}.{name}.hadoop.",
            )
            for key, value in self._settings.items():
                if key.startswith(prefix):
                    conf.set(key.removeprefix(prefix), value)
        else:
            conf = self.iceberg.spark.SparkUtil.hadoopConfCatalogOverrides(self.session, name)
        return self.iceberg.CatalogUtil.buildIcebergCatalog(name, self.map(properties), conf)

    def open_table(self, table: JavaObject, operations: JavaObject) -> JavaObject:
        """Return an ``OpenTable``, a class of the folder ``jvm``, for an Iceberg table and its operations."""
        return table_opener(self._gateway, self.hadoop_conf.getClassLoader()).open(table, operations)

    def connect_jdbc(self, uri: str, settings: Mapping[str, str]) -> JavaObject:
        """Return a ``java.sql.Connection``, which the caller closes. ``settings`` are properties of the JDBC driver."""
        properties = self._java.util.Properties()
        properties.putAll(self.map(settings))
        return self._java.sql.DriverManager.getConnection(uri, properties)

    def file_io(self, properties: Mapping[str, str]) -> JavaObject:
        """Return the FileIO of a catalog with these properties."""
        kind = properties.get("io-impl", "org.apache.iceberg.hadoop.HadoopFileIO")
        return self.iceberg.CatalogUtil.loadFileIO(kind, self.map(properties), self.hadoop_conf)

    def names_metadata(self, table: str) -> bool:
        """Return True if Iceberg has a metadata table of this name, such as ``files`` or ``history``.

        If a catalog has no table of this name, its client looks for the metadata of a table with the namespace's name.
        """
        with java_errors(f"look up the name {table}"):
            return getattr(self.iceberg.MetadataTableType, "from")(table) is not None

    def close(self, thing: JavaObject) -> None:
        """Close the object if it is a ``java.io.Closeable``."""
        from py4j.java_gateway import is_instance_of

        if is_instance_of(self._gateway, thing, "java.io.Closeable"):
            thing.close()

    def namespace(self, levels: tuple[str, ...]) -> JavaObject:
        """Return Iceberg's ``Namespace``. The last ones are kept, as each takes several calls of the JVM."""
        found = self._namespaces.get(levels)
        if found is None:
            array = self._gateway.new_array(self._java.lang.String, len(levels))
            for i, level in enumerate(levels):
                array[i] = level
            if len(self._namespaces) >= _NAMESPACES:
                self._namespaces.clear()
            found = self._namespaces[levels] = self.iceberg.catalog.Namespace.of(array)
        return found

    def map(self, values: Mapping[str, str]) -> JavaObject:
        """Return a ``java.util.Map``. Only one with several entries can be changed."""
        if len(values) == 1:
            return self._java.util.Collections.singletonMap(*next(iter(values.items())))
        # An entry would be a call of the JVM.
        kind = self._java.lang.Class.forName("java.util.HashMap")
        return self.iceberg.util.JsonUtil.mapper().readValue(json.dumps(dict(values)), kind)

    def set(self, values: Sequence[str]) -> JavaObject:
        """Return a ``java.util.HashSet``."""
        result = self._java.util.HashSet()
        for value in values:
            result.add(value)
        return result


def each(iterable: JavaObject) -> Iterator[JavaObject]:
    """Yield the elements of a Java ``Iterable``, because py4j only supports collections."""
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


@contextmanager
def java_errors(what: str) -> Iterator[None]:
    """Convert exceptions of the JVM to Levada's errors. ``what`` describes the operation in their messages."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except LevadaError:
        raise
    except (Py4JJavaError, *_spark_errors()) as error:
        thrown = error.java_exception if isinstance(error, Py4JJavaError) else error._origin
        raise _translated(what, thrown) from error
    except (Py4JError, ConnectionError) as error:
        raise Transient(
            "spark_unavailable",
            f"{what}: Spark's JVM does not respond",
            hint="if this persists, see the log, and raise the memory limit",
        ) from error


def _spark_errors() -> tuple[type[Any], ...]:
    """Return the exceptions that pyspark makes of those of the JVM, without an import of pyspark for a check."""
    captured = sys.modules.get("pyspark.errors.exceptions.captured")
    return () if captured is None else (captured.CapturedException,)


def _translated(what: str, thrown: JavaObject) -> LevadaError:
    causes = _causes(thrown)
    refused = next((c for c in causes if c.is_refused_by_sql), None)
    if refused is not None:
        return AccessDenied("destination_denied", f"{what}: {_first_line(refused.message)}", hint=_CHECK_KEYS)
    names = [c.name for c in causes]
    message = f"{what}: {names[0]}: {_first_line(causes[0].message)}"
    if "CommitStateUnknownException" in names:
        return CommitUnknown("commit_unknown", f"it is not known whether this succeeded: {message}")
    if "CommitFailedException" in names:
        return CommitConflict("commit_conflict", message)
    if names[0] in _NOT_THERE:
        return Missing("table_missing", message, hint="levada resync MANIFEST TABLE")
    reason = reason_of(causes)
    if reason is Reason.DENIED:
        return AccessDenied("destination_denied", message, hint=_CHECK_KEYS)
    if reason is Reason.FULL:
        return Transient("destination_full", message, hint="free space in the lake's storage, or enlarge it")
    if reason is Reason.DAMAGED:
        hint = "copy the table again: levada resync MANIFEST TABLE"
        return DestinationChanged("table_damaged", f"a file of the table is missing or damaged: {message}", hint=hint)
    if any(words in message for words in _CLOCK_WENT_BACK):
        hint = (
            "correct the clock of this machine. If it is right, another one was ahead when it wrote the table: copy the"
            " table again: levada resync MANIFEST TABLE"
        )
        return Transient("destination_clock", f"the clock is behind the table's last commit: {message}", hint=hint)
    if reason is None and any(name in _REJECTED for name in names):
        return NeedsOperator(
            "destination_rejected", message, hint="correct what the message names, then: levada retry MANIFEST TABLE"
        )
    return Transient("destination_unavailable", _with_root(message, causes), hint=_CHECK_LAKE)


def _causes(thrown: JavaObject) -> list[Cause]:
    """Return the chain of an exception's causes, outermost first, with the classes of each."""
    causes: list[Cause] = []
    while thrown is not None and len(causes) < 10:
        classes, kind = [], thrown.getClass()
        while kind is not None and (name := kind.getSimpleName()) != "Throwable":
            classes.append(name)
            kind = kind.getSuperclass()
        state = str(thrown.getSQLState() or "") if _SQL_ERROR.fullmatch(classes[0]) else ""
        inner = thrown.getCause()
        frames = () if inner is not None else tuple(f.getClassName() for f in list(thrown.getStackTrace())[:_FRAMES])
        causes.append(Cause(tuple(classes), str(thrown.getMessage() or ""), state, frames))
        thrown = inner
    return causes or [Cause(("error",))]


def _with_root(message: str, causes: Sequence[Cause]) -> str:
    """Return the message with that of the last cause, if this says more."""
    root = _first_line(causes[-1].message)
    return message if root in message else f"{message}: {root}"


def _first_line(message: str) -> str:
    text = message.strip()
    first = text.partition("\n")[0].rstrip()
    # The body of an HTTP response has its message on a later line.
    return (" ".join(text.split()) if first.endswith("{") else first)[:500] or "no message"
