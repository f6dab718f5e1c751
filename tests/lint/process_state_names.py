"""The state of a whole process, and why no order of tests changes an outcome by it.

A key is a file, or a file and a name in it. ``_OF_ARGUMENTS`` is the reason of a cache whose answers follow from its
arguments. What `tests.rigs.process_state` puts back after each test has the reason ``_PUT_BACK``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_OF_ARGUMENTS: Final = "its answers follow from its arguments"
_PUT_BACK: Final = "tests.rigs.process_state puts it back after each test"
_OWN_BLOCK: Final = "it is put back at the end of the block that changed it"
_CHILD: Final = "only processes have it that do nothing else"
_NAMES_ONLY: Final = "it makes names that differ, and no outcome depends on one"
_LOCK: Final = "a lock, which is free between tests"

PROCESS_STATE: Final[Mapping[str, str]] = {
    "engine/levada/cli/allocator.py:os.environ": _OWN_BLOCK,
    "engine/levada/cli/hints.py:_invocation": _PUT_BACK,
    "engine/levada/cli/manifests.py:os.environ.pop": "it removes variables that tests set by monkeypatch",
    "engine/levada/cli/run.py": _PUT_BACK,
    "engine/levada/cli/signals.py": _OWN_BLOCK,
    "engine/levada/cli/startup.py": "a collector that is on stays on, and open streams stay as they are",
    "engine/levada/copy/fork_server.py": _CHILD,
    "engine/levada/copy/in_process.py:IN_PROCESS": "it has no fields",
    "engine/levada/copy/reader_sessions.py:SESSIONS": _PUT_BACK,
    "engine/levada/copy/source.py:_numbers": _NAMES_ONLY,
    "engine/levada/copy/spark_daemon.py": _CHILD,
    "engine/levada/copy/spark_tasks.py:_groups": _NAMES_ONLY,
    "engine/levada/destinations/data_files/statistics.py:leaves": _OF_ARGUMENTS,
    "engine/levada/destinations/ducklake/storage.py:_connect": _OF_ARGUMENTS,
    "engine/levada/destinations/iceberg/compiled.py:_installing": _LOCK,
    "engine/levada/destinations/iceberg/compiled.py:_openers": "each JVM has its own, which does not change",
    "engine/levada/destinations/iceberg/storage.py:_file_io": _OF_ARGUMENTS,
    "engine/levada/docstrings.py:_docstrings": _OF_ARGUMENTS,
    "engine/levada/local/jars.py:_digest": "its arguments have the time of the file",
    "engine/levada/local/java.py:_version": "its arguments have the time of the file",
    "engine/levada/logs.py:_fields": _PUT_BACK,
    "engine/levada/mask_keys.py:_read": _PUT_BACK,
    "engine/levada/spec/plugins.py:_installed": _OF_ARGUMENTS,
    "engine/levada/postgres/client_key.py:_folder": "a folder of the process for files of different names",
    "engine/levada/postgres/conversion.py:_found": "it is of a database, and each test has its own",
    "engine/levada/postgres/kept_sessions.py:SESSIONS": "it keeps sessions by database, and each test has its own",
    "engine/levada/runtime/config_rules.py:_getter": _OF_ARGUMENTS,
    "engine/levada/runtime/report/page/__init__.py:page_files": "the files of the package",
    "engine/levada/runtime/resources/bare_jvm.py": "a JVM for each set of options, which answers each question anew",
    "engine/levada/runtime/resources/spark.py": "a folder of the process, a lock, and variables that a block puts back",
    "engine/levada/runtime/tables/verification_record.py:_parsed": _OF_ARGUMENTS,
    "engine/levada/schema/changes.py:change_schema": _OF_ARGUMENTS,
    "engine/levada/schema/masks.py:NO_KEYS": "it has no fields",
    "engine/levada/schema/retypes.py:read_retypes": _OF_ARGUMENTS,
    "engine/levada/segments/manifest.py:_codec": _OF_ARGUMENTS,
    "engine/levada/segments/staging.py:_connect": _OF_ARGUMENTS,
    "engine/levada/segments/versions.py": _OF_ARGUMENTS,
    "engine/levada/spec/problems.py:_adapter": _OF_ARGUMENTS,
    "engine/levada/status/document.py:adapter": _OF_ARGUMENTS,
    "engine/levada/testing/destinations/child.py": _CHILD,
    "engine/levada/threads.py:_OWNERS": _OWN_BLOCK,
    "operator/levada_operator/__main__.py": _CHILD,
    "operator/levada_operator/act/metrics.py": "tests of metrics compare before and after, or start a process",
    "operator/levada_operator/app/main.py:sys.setswitchinterval": _CHILD,
    "operator/levada_operator/desired/manifest.py:_TEXTS": _OF_ARGUMENTS,
}
