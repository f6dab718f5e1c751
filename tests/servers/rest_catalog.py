"""A REST catalog: the one that Apache Iceberg tests REST clients with, which keeps its tables in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.rigs.database import Database
from tests.servers.java import fetched, serving
from tests.servers.ports import free_port
from tests.servers.s3 import ObjectStore

from levada.local.jars import pyspark_folder

# 1.12 is published without its tests. Their Jetty is not named by their poms.
_JARS: Final = """
<dependency org="org.apache.iceberg" name="iceberg-open-api" rev="1.11.0" transitive="false">
  <artifact name="iceberg-open-api" type="jar" ext="jar" m:classifier="test-fixtures"/>
</dependency>
<dependency org="org.apache.iceberg" name="iceberg-core" rev="1.11.0" conf="default->default">
  <artifact name="iceberg-core" type="jar" ext="jar"/>
  <artifact name="iceberg-core" type="jar" ext="jar" m:classifier="tests"/>
</dependency>
<dependency org="org.apache.iceberg" name="iceberg-aws" rev="1.11.0" conf="default->default"/>
<dependency org="org.apache.iceberg" name="iceberg-aws-bundle" rev="1.11.0" transitive="false"/>
<dependency org="org.eclipse.jetty.ee10" name="jetty-ee10-servlet" rev="12.1.12" conf="default->default"/>
<dependency org="org.eclipse.jetty.compression" name="jetty-compression-server" rev="12.1.12" conf="default->default"/>
<dependency org="org.eclipse.jetty.compression" name="jetty-compression-gzip" rev="12.1.12" conf="default->default"/>
<dependency org="org.postgresql" name="postgresql" rev="42.7.14" transitive="false"/>
"""


@contextmanager
def rest_catalog(folder: Path, db: Database, store: ObjectStore, warehouse: str) -> Iterator[str]:
    """Run a catalog whose tables are below the warehouse in the store, and yield its URI."""
    port = free_port()
    properties = {
        "URI": f"jdbc:postgresql://127.0.0.1:{db.server.port}/{db.name}",
        "JDBC_USER": "postgres",
        "WAREHOUSE": warehouse,
        "IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "REST_PORT": str(port),
        # In its environment, a . of a property is _, and a - is __.
        **{key.upper().replace("-", "__").replace(".", "_"): value for key, value in store.properties.items()},
    }
    environment = {f"CATALOG_{key}": value for key, value in properties.items()}
    hadoop = sorted((pyspark_folder() / "jars").glob("hadoop-client-*.jar"))
    jars = [*fetched("iceberg-rest-1.11.0", _JARS), *hadoop]
    main = "org.apache.iceberg.rest.RESTCatalogServer"
    with serving(folder / "rest.log", port, jars, main, environment=environment):
        yield f"http://127.0.0.1:{port}"
