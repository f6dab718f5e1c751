"""Machines that differ from the one on which tests run: what a user's has must not change what the engine does."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from tests.rigs.engine import Engine

_NOWHERE: Final = "http://127.0.0.1:9"
_ODD: Final = '"Iİıi ß"'  # noqa: RUF001 - letters whose case depends on the language
_MACHINES: Final[dict[str, tuple[list[str], dict[str, str]]]] = {
    "proxy": ([], dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"), _NOWHERE)),
    "libpq": (
        [],
        {
            "PGHOST": "nowhere",
            "PGPORT": "1",
            "PGUSER": "nobody",
            "PGOPTIONS": "-c search_path=nowhere",
            "PGSSLMODE": "verify-full",
            "PGDATESTYLE": "German",
            "PGTZ": "Asia/Tokyo",
            "PGCLIENTENCODING": "LATIN1",
            "PGSERVICE": "nowhere",
            "PGTARGETSESSIONATTRS": "standby",
        },
    ),
    "another Spark": (
        [],
        {
            "SPARK_HOME": "/nowhere",
            "SPARK_CONF_DIR": "/nowhere",
            "HADOOP_CONF_DIR": "/nowhere",
            "PYSPARK_PYTHON": "/nowhere/python",
            "PYSPARK_SUBMIT_ARGS": "--master local[7] pyspark-shell",
            "SPARK_LOCAL_DIRS": "/nowhere",
        },
    ),
    "Turkish, in Nepal": (
        [],
        {"JAVA_TOOL_OPTIONS": "-Duser.language=tr -Duser.country=TR", "LANG": "tr_TR.UTF-8", "TZ": "Asia/Kathmandu"},
    ),
    "closed streams": (["sh", "-c", 'exec "$@" <&- >&-', "sh"], {}),
    "256 descriptors": (["prlimit", "--nofile=256:4096"], {}),
    "one core": (["taskset", "-c", "0"], {}),
    "96 cores": ([], {"PYTHONPATH": "96 cores"}),
}


@pytest.mark.nightly
@pytest.mark.parametrize("machine", _MACHINES)
def test_a_pipeline_runs_on_each_machine(engine: Engine, tmp_path: Path, machine: str) -> None:
    """A copy, changes of rows and of columns, a restart and both comparisons find equal tables."""
    wrapper, environment = _MACHINES[machine]
    if "PYTHONPATH" in environment:
        (tmp_path / "sitecustomize.py").write_text("import os\nos.sched_getaffinity = lambda _: set(range(96))\n")
        environment = {"PYTHONPATH": str(tmp_path)}
    engine.db.execute(
        "CREATE TABLE plain (id int PRIMARY KEY, v text)",
        "INSERT INTO plain SELECT g, 'ıİğ' || g FROM generate_series(1, 5000) g",
        f'CREATE TABLE {_ODD} (id int PRIMARY KEY, "Iİ" text, "ÜBER" timestamptz, d date, n numeric(12, 3))',
        f"INSERT INTO {_ODD} SELECT g, 'ß' || g, '2024-03-31 02:30'::timestamptz + g * interval '17 min',"
        " '0001-01-01'::date + g, g / 7.0 FROM generate_series(1, 300) g",
    )
    engine.write_manifest()
    for turn in range(2):
        engine.start(*wrapper, **environment)
        engine.wait_caught_up()
        engine.db.execute(
            "UPDATE plain SET v = v || 'ü' WHERE id % 7 = 0",
            f"DELETE FROM plain WHERE id < {100 * (turn + 1)}",
            f"ALTER TABLE plain ADD COLUMN c{turn} text DEFAULT 'İ'",
            "INSERT INTO plain (id, v) SELECT max(id) + 1, 'later' FROM plain",
            f'UPDATE {_ODD} SET d = d + 1, "ÜBER" = "ÜBER" + interval \'1 year\' WHERE id % 2 = 0',
        )
        engine.wait_caught_up()
        engine.assert_verified("plain", _ODD.strip('"'))
        asked = engine.levada("status", *engine.options(), **environment)
        assert "streaming" in asked.stdout.lower() or "2/2" in asked.stdout, asked.stdout
        assert engine.stop() == 0
    engine.assert_equal("plain", _ODD.strip('"'))
