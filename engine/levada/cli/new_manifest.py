"""The text of a new manifest, with comments. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from levada.cli.formatting import size
from levada.postgres.estimates import TableEstimate
from levada.printable import counted, one_record
from levada.spec.source import TlsMode
from levada.values import QualifiedTable

_LISTED: Final = 40
_TLS: Final = {
    TlsMode.DISABLE: "the connection is not encrypted",
    TlsMode.REQUIRE: "encrypted, but the server's certificate is not checked. Safer: VerifyFull, with tls.caSecretRef",
    TlsMode.VERIFY_CA: "encrypted, and the server's certificate is checked, but not its host name",
    TlsMode.VERIFY_FULL: "encrypted, and the server's certificate is checked",
}


@dataclass(frozen=True, slots=True)
class NewPipeline:
    """The values of a new manifest. ``warehouse`` and ``staging`` are URIs. ``secret`` names the source's Secret."""

    name: str
    host: str
    port: int
    database: str
    secret: str
    tls: TlsMode
    warehouse: str
    staging: str
    tables: Mapping[QualifiedTable, TableEstimate | None]


def manifest_text(new: NewPipeline) -> str:
    """Return the manifest of a pipeline that copies every table of the database into Iceberg."""
    schemas = sorted({table.schema for table in new.tables}) or ["public"]
    include = "".join(f'      - {{schema: {_yaml(schema)}, name: "*"}}\n' for schema in schemas)
    return f"""\
# A pipeline of Levada: tables of a PostgreSQL database, kept up to date in Apache Iceberg.
#   levada check    reports every problem, each with its solution, and changes nothing
#   levada run      copies the tables, and then streams their changes
#   levada schema   prints the JSON schema of this file, for editors
apiVersion: levada.dev/v1alpha1
kind: Pipeline
metadata:
  name: {_yaml(new.name)}
spec:
  source:
    host: {_yaml(new.host)}
    port: {new.port}
    database: {_yaml(new.database)}
    credentialsSecretRef: {{name: {_yaml(new.secret)}}}  # a folder with the files username and password
    tls: {{mode: {new.tls.value}}}  # {_TLS[new.tls]}
    # slot: {{onLost: Resync}}  # copy the tables again if changes are lost. Default: Hold, and say what to do
  tables:
    include:
{include}{_found(new.tables)}    # A selected table may have a condition: where: "status <> 'draft'"
    # exclude:
    #   - {{schema: public, name: "tmp_*"}}
  destination:
    iceberg:
      catalog:
        type: Hadoop  # or Rest, Jdbc, Hive, Glue
        warehouse: {_yaml(new.warehouse)}
      namespace: {_yaml(f"{new.name.replace('-', '_')}_{{schema}}")}
  staging:
    # Durable: the slot is acknowledged as soon as a change is here, so the source's disk does not fill while the lake
    # is away.
    uri: {_yaml(new.staging)}
  freshnessSeconds: 10  # how far a table may trail. Larger is cheaper
{_one_table(new)}"""


def _one_table(new: NewPipeline) -> str:
    """Return the settings of one table as a document in comments, which is valid without them."""
    table = min(new.tables, key=lambda t: (-_bytes(new.tables[t]), t), default=QualifiedTable("public", "orders"))
    return f"""\
# Settings of one table are a document of its own:
# ---
# apiVersion: levada.dev/v1alpha1
# kind: TableSync
# metadata: {{name: one-table}}
# spec:
#   pipelineRef: {{name: {_yaml(new.name)}}}
#   table: {{schema: {_yaml(table.schema)}, name: {_yaml(table.name)}}}
#   deletes: Mark  # keeps the rows that the source deletes, with the time. Default: Apply
#   columns:
#     exclude: [notes]
#     mask: {{card: {{method: Last, length: 4}}}}  # also "Null", Truncate and HMAC, before anything is written
#     types: {{price: "Decimal(38, 9)"}}  # also Text, Uuid, List, Range, Multirange, Map and Wkb
"""


def _found(tables: Mapping[QualifiedTable, TableEstimate | None]) -> str:
    if not tables:
        return "    # The database has no table yet. A run needs one, and takes up new ones meanwhile.\n"
    largest = sorted(tables, key=lambda t: (-_bytes(tables[t]), t))
    lines = [f"    # Found, the largest first ({counted(len(tables), 'table')}):"]
    lines += [f"    #   {one_record(str(table))}{_size(tables[table])}" for table in largest[:_LISTED]]
    if len(largest) > _LISTED:
        lines.append(f"    #   and {len(largest) - _LISTED} more")
    return "\n".join(lines) + "\n"


def _bytes(estimate: TableEstimate | None) -> int:
    return 0 if estimate is None else estimate.bytes


def _size(estimate: TableEstimate | None) -> str:
    if estimate is None:
        return ""
    rows = "" if estimate.rows is None else f"about {counted(estimate.rows, 'row')}, "
    return f": {rows}{size(estimate.bytes)}"


def _yaml(text: str) -> str:
    """Return the text as a YAML scalar. Names of databases may have any characters.

    A JSON string is one, except for characters beyond U+FFFF, for which JSON has two escapes and YAML one.
    """
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08X}" for c in quoted)
