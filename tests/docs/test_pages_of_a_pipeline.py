"""The README and the pages about commands, run one after the other with one engine, and the SQL of readers by Spark."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.docs.pages import blocks_of, run_page
from tests.rigs.database import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", DOCS / "verify.md", DOCS / "cuts.md", DOCS / "cli.md"]


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_pages_work_with_one_engine(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    """Each command works and prints what its page shows. Readers find the rows as of a cut."""
    db.execute(
        "CREATE TABLE customers (id bigint PRIMARY KEY, name text)",
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint)",
        "INSERT INTO customers SELECT i, 'Customer ' || i FROM generate_series(1, 10) i",
        "INSERT INTO orders SELECT i, 1 + i % 10 FROM generate_series(1, 1000) i",
    )
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{db.server.bin}:{os.environ['PATH']}",
        "PGHOST": "127.0.0.1",
        "PGPORT": str(db.server.port),
        "PGUSER": "postgres",
        "PGPASSWORD": "any",
        "PGDATABASE": db.name,
        "LEVADA_SECRETS": "secrets",
    }
    address = f"127.0.0.1:{db.server.port}/{db.name}"
    here = {
        "levada cut    pipeline.yaml month_end ": "levada cut pipeline.yaml another ",
        "levada cut pipeline.yaml month_end\n": (
            "psql -qX -c \"INSERT INTO customers VALUES (11, 'new')\"\nlevada cut pipeline.yaml month_end\n"
        ),
        # A run of its own terminal is one in the background here, and the others wait for it.
        "levada run    pipeline.yaml --secrets ./secrets ": (
            "levada run pipeline.yaml --secrets ./secrets > run.log 2>&1 & "
        ),
        "levada status pipeline.yaml --secrets ./secrets ": (
            "until levada status pipeline.yaml --secrets ./secrets | grep '2/2 tables ready'; do sleep 1; done "
        ),
        "levada init   postgresql://levada@127.0.0.1/shop": f"levada init postgresql://postgres@{address} --name shop",
        "levada init postgresql://levada@127.0.0.1:5432/shop": (
            f"levada init postgresql://postgres@{address} --name shop --dir another"
        ),
    }
    run_page(PAGES, tmp_path, environment, adapted=here, languages=["sh"])
    run_page(DOCS / "cuts.md", tmp_path, environment, languages=["python"])
    spark.conf.set("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.lake.type", "hadoop")
    spark.conf.set("spark.sql.catalog.lake.warehouse", f"file://{tmp_path}/lake")
    for query in (*sql_of("cuts.md"), *sql_of("destinations/iceberg.md")):
        tagged = query.replace("levada-2026-11-23T06:00:04Z", "month_end").replace("'2026-11-23 06:07:00'", "now()")
        rows = spark.sql(tagged.replace(" shop_public.", " lake.shop_public.")).collect()
        assert len(rows) == (1 if "max_by" in query else 1000), query


def sql_of(page: str) -> list[str]:
    """Return the statements of SQL on a page."""
    blocks = [block.code for block in blocks_of(DOCS / page) if block.language == "sql"]
    return [statement for block in blocks for statement in block.split(";") if statement.strip()]
