"""The lines and the exit code of `levada verify`."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import yaml
from tests.rigs.command_line import kept, manifest, on, publish
from tests.rigs.database import Database
from tests.rigs.waiting import LIMIT_S, until

from levada.cli.exit_codes import Exit
from levada.cli.verify import lines, verdict
from levada.errors import NeedsOperator
from levada.runtime.report.verifications import Verifications
from levada.runtime.tables.verification_record import VerificationRecord, store_verification
from levada.status import ErrorProgress, RetryPolicy
from levada.stores import PostgresStore
from levada.stores.phases import Ready
from levada.values import Lsn, QualifiedTable
from levada.verify.differences import Kind
from levada.verify.report import NotRepaired, TableReport
from levada.verify.table import VerifyOptions

__all__ = ["manifest"]


def test_a_table_that_cannot_be_repaired_differs() -> None:
    """Its differences are printed, then the reason and the command that helps. The exit code is 6."""

    def verify(table: QualifiedTable, options: VerifyOptions, cancelled: threading.Event) -> TableReport:
        report = TableReport(table, Lsn(1), Lsn(1), 3, 2, counts={Kind.MISSING: 1})
        raise NotRepaired(NeedsOperator("verify_unrepairable", "its rows have no key", hint="resync it"), report)

    verifications = Verifications(verify)
    number = verifications.start(b'{"tables": ["public.t"], "repair": true}')["id"]
    state = until(lambda: verifications.state(number) or {}, lambda found: found["finished"])
    assert verdict(state["tables"]) is Exit.DIFFERENT
    [result] = state["tables"]
    assert list(lines(result)) == [
        "public.t: different at 0/1: 1 missing (source 3 rows, destination 2 rows)",
        "  not repaired: its rows have no key [verify_unrepairable]",
        "  hint: resync it",
    ]


def test_what_is_done_is_shown() -> None:
    """A repair of a large table takes long, so its steps are in the state while it runs."""
    seen = threading.Event()

    def verify(table: QualifiedTable, options: VerifyOptions, cancelled: threading.Event) -> TableReport:
        options.told("reading the files")
        assert seen.wait(LIMIT_S)
        return TableReport(table, Lsn(1), Lsn(1), 2, 2)

    verifications = Verifications(verify)
    number = verifications.start(b'{"tables": ["public.t"]}')["id"]
    until(lambda: verifications.state(number) or {}, lambda s: s["step"] == "public.t: reading the files")
    seen.set()
    until(lambda: verifications.state(number) or {}, lambda s: s["finished"])


def test_a_suspended_pipeline_has_no_engine(manifest: Path, db: Database) -> None:
    """The error names the field, because no engine can be started for the verification."""
    db.execute(f"CREATE PUBLICATION levada_{db.name} FOR TABLE orders")
    body = yaml.safe_load(manifest.read_text())
    body["spec"]["suspend"] = True
    manifest.write_text(yaml.safe_dump(body))
    result = on(manifest, "verify")
    assert result.exit_code == Exit.FAILED, result.output
    assert "is suspended (spec.suspend: true), so no engine was started for it [pipeline_suspended]" in result.stderr
    assert "set spec.suspend: false in the manifest" in result.stderr


def test_a_table_that_differs_is_not_ready_without_an_engine(manifest: Path, db: Database) -> None:
    """The engine that compared it may have lasted for the comparison alone. The store has the result."""
    publish(db)
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", f"levada_{db.name}")
    table = kept(db, "orders", Ready())
    store = PostgresStore(db.connection, db.name.replace("_", "-"))
    store.load_fingerprints()
    store.next_epoch()
    found = ErrorProgress("rows_differ", "1 key", "levada resync MANIFEST public.orders", RetryPolicy.MANUAL_RETRY)
    store_verification(store, table, VerificationRecord(differs=found))
    store.close()
    result = on(manifest, "status", "-o", "json")
    assert result.exit_code == Exit.TABLE_ERRORED, result.output
    [shown] = json.loads(result.stdout)["tables"]
    assert (shown["phase"], shown["error"]["code"]) == ("Errored", "rows_differ")


def test_a_table_with_a_damaged_file_has_no_number_of_rows() -> None:
    """Its rows were not compared, and so 0 rows at the source would be wrong."""
    report = TableReport(QualifiedTable("public", "t"), Lsn(1), Lsn(1), 0, 0, problems=("a file is missing",))
    verifications = Verifications(lambda *_: report)
    number = verifications.start(b'{"tables": ["public.t"]}')["id"]
    state = until(lambda: verifications.state(number) or {}, lambda found: found["finished"])
    assert list(lines(state["tables"][0])) == [
        "public.t: different at 0/1: see below (no row was compared)",
        "  a file is missing",
    ]
