"""The whole story on one machine: copy a shop into Iceberg, stream its traffic, change a table, crash, compare.

``make demo``, or ``python examples/shop/demo.py [--scale 1] [--seconds 12] [--keep]``. The exit code is the verdict.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from psycopg.rows import tuple_row
from pyiceberg.table import StaticTable
from rich.console import Console
from rich.live import Live
from traffic import Traffic

from levada.cli.render import dashboard, summary
from levada.local.postgres import EmbeddedPostgres
from levada.runtime.host.work_dir import running_progress
from levada.status import Progress
from levada.values import Lsn

HERE = Path(__file__).parent
TABLES = ("customers", "products", "orders", "order_items", "payments", "baskets")
PATIENCE_S = 300

warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")  # of the embedded PostgreSQL's package
console = Console(highlight=False, soft_wrap=True)


class Engine:
    """``levada run`` as a process of its own, as it would run in a pod."""

    def __init__(self, folder: Path) -> None:
        self.manifest = folder / "pipeline.yaml"
        self.secrets = folder / "secrets"
        self.work_dir = folder / "work"
        self.log = folder / "engine.log"
        self._process: subprocess.Popen[bytes] | None = None

    def command(self, name: str, *options: str) -> list[str]:
        common = [str(self.manifest), "--secrets", str(self.secrets)]
        return [sys.executable, "-m", "levada", name, *common, *options]

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command("run", "--work-dir", str(self.work_dir)), stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """End it as a power cut would: SIGKILL, no clean-up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """End it cleanly and return its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(120)

    def verify(self) -> bool:
        """Let the engine compare every table with the source, print the result, and return True if all are equal."""
        command = self.command("verify", "--work-dir", str(self.work_dir))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            say(line)
        if done.returncode:
            say(done.stderr, "red")
        return done.returncode == 0

    def progress(self) -> Progress | None:
        """Return the engine's progress, or None while the port does not answer. Raise if the process has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the engine ended with {self._process.returncode}:\n{self.log.read_text()[-4000:]}")
        return running_progress(self.work_dir)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is about 250,000 rows")
    parser.add_argument("--seconds", type=float, default=12.0, help="of traffic before the crash")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the lake")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="levada-demo-"))
    began = time.monotonic()
    try:
        with EmbeddedPostgres(folder / "postgres") as server:
            equal = demonstrate(folder, server, options.scale, options.seconds)
    finally:
        if options.keep:
            say(f"the lake is in {folder / 'lake'}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    say(f"{'Equal' if equal else 'DIFFERENT'}, after {time.monotonic() - began:.0f} s.", "green" if equal else "red")
    return 0 if equal else 1


def demonstrate(folder: Path, server: EmbeddedPostgres, scale: float, seconds: float) -> bool:
    step("Open a shop")
    open_shop(server, scale)
    write_manifest(folder, server)
    engine = Engine(folder)
    traffic = Traffic(server.uri("shop"))
    try:
        step("Copy it into Iceberg while customers go on buying")
        traffic.start()
        engine.start()
        follow(engine, ready)
        step(f"Stream for {seconds:.0f} seconds, with a new column in the middle")
        follow(engine, after(seconds / 2))
        add_column(server)
        follow(engine, after(seconds / 2))
        step("Kill the engine without warning, and start it again")
        engine.kill()
        engine.start()
        follow(engine, applied(position(server)))
        step("Compare every row and column while customers go on buying")
        equal = engine.verify()
        step("Close the shop and let the lake catch up")
        traffic.stop()
        say(", ".join(f"{n:,} x {name}" for name, n in traffic.transactions.most_common()))
        follow(engine, applied(position(server)))
        code = engine.stop()
        say(f"the engine ended cleanly, exit code {code}")
    except BaseException:
        engine.kill()
        raise
    step("Ask the lake")
    best_sellers(folder)
    step("Leave nothing behind at the source")
    subprocess.run(engine.command("cleanup", "--work-dir", str(engine.work_dir), "--yes"), check=True)
    return equal and code == 0


def open_shop(server: EmbeddedPostgres, scale: float) -> None:
    with psycopg.connect(server.uri(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE shop")
    with psycopg.connect(server.uri("shop"), autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute((HERE / "schema.sql").read_text())
        connection.execute((HERE / "rows.sql").read_text(), {"scale": scale})
        counts = [f"{count(connection, table):,} {table}" for table in TABLES]
    say(", ".join(counts))


def write_manifest(folder: Path, server: EmbeddedPostgres) -> None:
    """Write the manifest next to this file with the addresses of this machine, and its Secret."""
    manifest = yaml.safe_load((HERE / "pipeline.yaml").read_text())
    manifest["spec"]["source"] |= {"host": "127.0.0.1", "port": server.port}
    manifest["spec"]["destination"]["iceberg"]["catalog"]["warehouse"] = f"file://{folder}/lake"
    manifest["spec"]["staging"]["uri"] = f"file://{folder}/staging"
    orders = (HERE / "orders.yaml").read_text()
    (folder / "pipeline.yaml").write_text(f"{yaml.safe_dump(manifest)}---\n{orders}")
    secret = folder / "secrets" / "shop-cdc"
    secret.mkdir(parents=True)
    (secret / "username").write_text("postgres")
    (secret / "password").write_text("not asked for on loopback")


def follow(engine: Engine, done: Callable[[Progress], bool]) -> None:
    """Show the engine's progress until ``done`` accepts it. Raise TimeoutError after PATIENCE_S seconds."""
    deadline = time.monotonic() + PATIENCE_S
    before = now = None
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while now is None or not done(now):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not done in {PATIENCE_S} s:\n{engine.log.read_text()[-4000:]}")
            time.sleep(0.25)
            before, now = now or before, engine.progress()
            if now is not None and any(t.error is not None and t.error.next_retry is None for t in now.tables):
                raise RuntimeError(f"a table is errored: {[t.error for t in now.tables if t.error]}")
            if now is not None:
                live.update(dashboard(now, before))
    say(summary(now), "dim")


def ready(progress: Progress) -> bool:
    return progress.ready and len(progress.tables) == len(TABLES)


def after(seconds: float) -> Callable[[Progress], bool]:
    end = time.monotonic() + seconds
    return lambda progress: time.monotonic() >= end


def applied(target: Lsn) -> Callable[[Progress], bool]:
    return lambda progress: ready(progress) and progress.has_reached(target)


def add_column(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.uri("shop"), autocommit=True) as connection:
        connection.execute("ALTER TABLE customers ADD COLUMN points integer NOT NULL DEFAULT 100")
        connection.execute("UPDATE customers SET points = id % 1000 WHERE id % 100 = 0")
    say("ALTER TABLE customers ADD COLUMN points integer NOT NULL DEFAULT 100")


def position(server: EmbeddedPostgres) -> Lsn:
    with psycopg.connect(server.uri("shop"), row_factory=tuple_row) as connection:
        # With synchronous_commit off, the newest commits may not be written yet, so pg_current_wal_lsn() is too low.
        return Lsn.parse(str(connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]))


def best_sellers(folder: Path) -> None:
    """Print the turnover of each country, from the lake alone."""
    lake = {name: lake_table(folder / "lake" / "shop" / name) for name in ("customers", "orders")}
    paid = lake["orders"].filter(pc.field("status").isin(["paid", "shipped"]))
    buyers = lake["customers"].select(["id", "country"]).rename_columns(["customer_id", "country"])
    turnover = paid.select(["customer_id", "total"]).join(buyers, "customer_id", join_type="inner")
    table = turnover.group_by("country").aggregate([("total", "sum"), ("total", "count")]).sort_by("country")
    for row in table.to_pylist():
        say(f"{row['country']}  {row['total_count']:>8,} orders  {row['total_sum']:>16,} EUR")


def lake_table(folder: Path) -> pa.Table:
    """Read an Iceberg table of a Hadoop catalog as PyIceberg sees it."""
    version = (folder / "metadata" / "version-hint.text").read_text().strip()
    return StaticTable.from_metadata(f"file://{folder}/metadata/v{version}.metadata.json").scan().to_arrow()


def count(connection: psycopg.Connection[Any], table: str) -> int:
    return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def step(text: str) -> None:
    console.print(f"\n[bold]{text}[/bold]")


def say(text: str, style: str = "") -> None:
    console.print(f"  {text}", style=style, markup=False)


if __name__ == "__main__":
    sys.exit(main())
