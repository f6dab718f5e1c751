"""The commands and their options. Each command's implementation is in its own module, imported only when it runs."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from levada.cli.command import VARIABLE, Command, Commands, NamesCommand
from levada.cli.exit_codes import Exit
from levada.cli.options import Format, LogFormat, ManifestFile, Secrets, Tables, Until, WorkDir, Yes
from levada.cli.output import Output, escape_unencodable, write_json
from levada.cli.signals import StopSignals
from levada.status.orphans import OPERATOR
from levada.version import VERSION

if TYPE_CHECKING:
    from levada.postgres.problems import Problem

CALLED_AT: Final = time.monotonic()
"""The process's start on the monotonic clock, as early as Python code can read it. ``--timeout`` counts from here."""


COPY_ORDER: Final = "LEVADA_COPY_ORDER"
"""The variable by which a Job of the operator names its order. An image of an earlier release ignores it."""
_LOGGED: Final = frozenset({"run", "copy"})
"""The commands that run for long, and log what they do."""

app = typer.Typer(
    name="levada",
    cls=Commands,
    help="Postgres tables, kept up to date in a lakehouse.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


command = partial(app.command, cls=Command)
names_command = partial(app.command, cls=NamesCommand)


def show_version(wanted: bool) -> None:
    """Print the version and exit, if ``wanted``."""
    if wanted:
        typer.echo(VERSION)
        raise typer.Exit


@app.callback()
def levada(
    ctx: typer.Context,
    shown: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", envvar="LEVADA_DEBUG", help="Log more, show tracebacks.")] = False,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", envvar="LEVADA_LOG_FORMAT", help="Format of log lines.")
    ] = LogFormat.TEXT,
) -> None:
    """Postgres tables, kept up to date in a lakehouse."""
    from levada.logs import configure

    escape_unencodable()
    # The output of short commands must not be mixed with log lines. An engine or a dedicated copy logs its progress.
    configure(as_json=log_format is LogFormat.JSON, debug=debug, quiet=ctx.invoked_subcommand not in _LOGGED)


@command()
def init(
    dsn: Annotated[
        str,
        typer.Argument(metavar="DSN", help="postgresql://USER@HOST:5432/DATABASE. What it lacks is asked."),
    ] = "",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="The pipeline's name. Default: from the database's.")
    ] = "",
    lake: Annotated[
        str | None,
        typer.Option("--lake", metavar="DIR", help="Folder of the tables, or a file:// URI. Default: lake."),
    ] = None,
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Folder for the manifest and the Secrets.", file_okay=False)
    ] = Path(),
) -> Exit:
    """Look at a source, and write a commented manifest and a folder with its Secret."""
    from levada.cli.init import InitOptions
    from levada.cli.init import init as write_manifest

    return write_manifest(InitOptions(dsn, name, lake, directory))


@command()
def run(
    ctx: typer.Context,
    manifest: ManifestFile,
    until: Annotated[
        Until | None, typer.Option("--until", help="Exit at this goal. Default: run until stopped.")
    ] = None,
    secrets: Secrets = None,
    work_dir: WorkDir = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Address that --port is bound to.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", metavar="N", min=0, max=65535, help="For probes, progress, metrics. 0: any free port."),
    ] = 0,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="S", help="Seconds to reach --until.")] = None,
    approve: Annotated[
        bool,
        typer.Option("--approve", help="With spec.approval: Manual, copy tables again if the manifest requires it."),
    ] = False,
) -> Exit:
    """Run a pipeline until it is stopped or reaches a goal."""
    if timeout is not None and not timeout >= 0:
        raise typer.BadParameter("must be a number of seconds, 0 or more", param_hint="--timeout")
    if timeout is not None and until is None:
        raise typer.BadParameter("requires --until", param_hint="--timeout")
    # Before the imports, which take a second: a signal during the imports is a clean stop too.
    with StopSignals() as signals:
        from levada.cli.run import RunOptions
        from levada.cli.run import run as run_engine

        options = RunOptions(
            manifest=manifest,
            until_caught_up=until is Until.CAUGHT_UP,
            secrets=secrets,
            work_dir=work_dir,
            host=host,
            port=port,
            timeout_s=timeout,
            called_at=CALLED_AT,
            debug=debugging(ctx),
            approve=approve,
        )
        return run_engine(options, signals)


@command()
def check(
    manifest: ManifestFile, secrets: Secrets = None, work_dir: WorkDir = None, output: Format = Output.TEXT
) -> Exit:
    """Report everything that would keep a pipeline from running. Change nothing."""
    from levada.cli.check import check as check_pipeline
    from levada.cli.check import refused
    from levada.cli.manifests import folder, read
    from levada.runtime.host.pod import TERMINATION_LOG, check_until_ok, mounted

    def once() -> tuple[Problem, ...]:
        manifests = read(manifest, secrets, work_dir)
        return check_pipeline(manifests, secrets, folder(manifest, manifests, work_dir), output)

    # With the manifest's variable it is a command by kubectl exec, which neither waits nor writes the pod's message.
    log = None if VARIABLE in os.environ else os.environ.get(TERMINATION_LOG)
    if not log or secrets is None or work_dir is None:
        problems = once()
    else:
        problems = check_until_ok(once, Path(log), mounted(manifest, secrets), work_dir)
    return Exit.PREFLIGHT if refused(problems) else Exit.OK


@command()
def plan(
    manifest: ManifestFile, secrets: Secrets = None, work_dir: WorkDir = None, output: Format = Output.TEXT
) -> Exit:
    """Show what a run would do: tables and their sizes, time and disk that copies need. Change nothing."""
    from levada.cli.manifests import folder, read
    from levada.cli.plan import plan as show_plan

    manifests = read(manifest, secrets, work_dir)
    return show_plan(manifests, secrets, folder(manifest, manifests, work_dir), output)


@command()
def status(
    manifest: ManifestFile, secrets: Secrets = None, work_dir: WorkDir = None, output: Format = Output.TEXT
) -> Exit:
    """Show the progress of each table, from the running engine or else from the store."""
    from levada.cli.manifests import folder, read
    from levada.cli.status import status as show_status

    manifests = read(manifest, secrets, work_dir)
    return show_status(manifests, secrets, folder(manifest, manifests, work_dir), output)


@command()
def lag(manifest: ManifestFile, secrets: Secrets = None, output: Format = Output.TEXT) -> Exit:
    """Show how much WAL the slot has not confirmed, and how much it retains."""
    from levada.cli.manifests import read
    from levada.cli.status import lag as show_lag

    return show_lag(read(manifest, secrets), secrets, output)


@command()
def verify(
    manifest: ManifestFile,
    table: Annotated[
        list[str] | None, typer.Option("--table", metavar="TABLE", help="Table name, as schema.name. Default: all.")
    ] = None,
    sample: Annotated[
        str, typer.Option("--sample", metavar="SHARE", help="Compare all keys, but the values of a share, as 1%.")
    ] = "100%",
    repair: Annotated[bool, typer.Option("--repair", help="Write the rows that differ again.")] = False,
    examples: Annotated[
        int, typer.Option("--examples", metavar="N", min=0, max=10_000, help="Keys to print of each table.")
    ] = 100,
    show_values: Annotated[
        bool, typer.Option("--show-values", help="Print the values that differ, and not only their columns.")
    ] = False,
    secrets: Secrets = None,
    work_dir: WorkDir = None,
    output: Format = Output.TEXT,
) -> Exit:
    """Compare tables at the destination with the source, each at one LSN."""
    from levada.cli.manifests import folder, read
    from levada.cli.verify import VerifyCommand
    from levada.cli.verify import verify as verify_tables

    share, manifests = share_of(sample), read(manifest, secrets, work_dir)
    work = folder(manifest, manifests, work_dir)
    command = VerifyCommand(manifests, manifest, secrets, work, table or None, share, repair, examples, show_values)
    return verify_tables(command, output)


@names_command()
def cut(
    manifest: ManifestFile,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The cut's name, which is the name of the tag.")],
    drop: Annotated[bool, typer.Option("--drop", help="Remove the cut from all tables.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Leave out tables that cannot be part of it.")] = False,
    secrets: Secrets = None,
    work_dir: WorkDir = None,
    output: Format = Output.TEXT,
) -> Exit:
    """Keep every table at the destination as of one LSN, under one name."""
    from levada.cli.cuts import CutCommand
    from levada.cli.cuts import cut as cut_tables
    from levada.cli.manifests import folder, read

    manifests = read(manifest, secrets, work_dir)
    work = folder(manifest, manifests, work_dir)
    return cut_tables(CutCommand(manifests, manifest, secrets, work, name, partial, drop), output)


@command()
def cuts(
    manifest: ManifestFile, secrets: Secrets = None, work_dir: WorkDir = None, output: Format = Output.TEXT
) -> Exit:
    """List the cuts of all tables."""
    from levada.cli.cuts import cuts as list_cuts
    from levada.cli.manifests import folder, read

    manifests = read(manifest, secrets, work_dir)
    return list_cuts(manifests, secrets, folder(manifest, manifests, work_dir), output)


@names_command()
def erase(
    manifest: ManifestFile,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table's name, as schema.name.")],
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="The value of the key column, or a JSON object with several ones."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="A file with one key in each line.", exists=True, dir_okay=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed. Remove nothing.")] = False,
    with_cuts: Annotated[bool, typer.Option("--cuts", help="Take the table out of cuts that have the rows.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also erase rows that the source still has.")] = False,
    yes: Yes = False,
    secrets: Secrets = None,
    work_dir: WorkDir = None,
    output: Format = Output.TEXT,
) -> Exit:
    """Erase the rows of keys from a table, its snapshots and its files, and list what may still have them."""
    from levada.cli.erase import EraseCommand
    from levada.cli.erase import erase as erase_keys
    from levada.cli.manifests import folder, read

    manifests = read(manifest, secrets, work_dir)
    work, given = folder(manifest, manifests, work_dir), tuple(keys or ())
    command = EraseCommand(
        manifests, manifest, secrets, work, table, given, file, dry_run, with_cuts, anyway, confirmed=yes
    )
    return erase_keys(command, output)


@names_command()
def retry(
    manifest: ManifestFile,
    tables: Tables = None,
    every: Annotated[bool, typer.Option("--all", help="Every errored table.")] = False,
    secrets: Secrets = None,
) -> Exit:
    """Retry errored tables from the step that failed. Their data is kept."""
    from levada.cli.manifests import read
    from levada.cli.tables import retry as retry_tables

    return retry_tables(read(manifest, secrets), manifest, secrets, chosen(tables, every))


@names_command()
def resync(
    manifest: ManifestFile,
    tables: Tables = None,
    every: Annotated[bool, typer.Option("--all", help="Every table.")] = False,
    secrets: Secrets = None,
) -> Exit:
    """Resync tables: copy them again. Tables that stream stay readable meanwhile."""
    from levada.cli.manifests import read
    from levada.cli.tables import resync as resync_tables

    return resync_tables(read(manifest, secrets), manifest, secrets, chosen(tables, every))


@command()
def cleanup(manifest: ManifestFile, secrets: Secrets = None, work_dir: WorkDir = None, yes: Yes = False) -> Exit:
    """Remove what a pipeline left behind, as its deletionPolicy specifies."""
    from levada.cli.cleanup import cleanup as cleanup_pipeline
    from levada.cli.manifests import folder, read

    manifests = read(manifest, secrets, work_dir)
    return cleanup_pipeline(manifests, secrets, folder(manifest, manifests, work_dir), confirmed=yes)


@command()
def takeover(
    manifest: ManifestFile,
    former: Annotated[str, typer.Option("--from", metavar="UID", help="The UID of the former owner.")],
    secrets: Secrets = None,
    work_dir: WorkDir = None,
    yes: Yes = False,
) -> Exit:
    """Make a pipeline the owner of what a former owner has: its store, publication and staged changes."""
    from levada.cli.manifests import folder, read
    from levada.cli.takeover import takeover as take_pipeline_over

    manifests = read(manifest, secrets, work_dir)
    return take_pipeline_over(manifests, secrets, folder(manifest, manifests, work_dir), former, confirmed=yes)


@command()
def orphans(
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="The operator's namespace. In a pod: the pod's.",
            envvar="POD_NAMESPACE",
        ),
    ] = "levada-system",
    lease: Annotated[
        str, typer.Option("--lease", metavar="NAME", help="The name of the operator's Lease.", envvar="LEVADA_LEASE")
    ] = OPERATOR,
    forget: Annotated[
        list[str] | None, typer.Option("--forget", metavar="UID", help="Take an entry off the list. Can be repeated.")
    ] = None,
    output: Format = Output.TEXT,
) -> Exit:
    """List what deleted Pipelines may have left at their sources, with the SQL that removes it."""
    from levada.cli.orphans import orphans as list_orphans

    return list_orphans(namespace, lease, tuple(forget or ()), output)


@command(hidden=True)
def copy(
    manifest: ManifestFile,
    table: Annotated[str, typer.Option("--table", metavar="TABLE", help="The table's name, as schema.name.")],
    order: Annotated[
        str,
        typer.Option("--order", metavar="TOKEN", help="The only order to take. Default: any.", envvar=COPY_ORDER),
    ] = "",
    secrets: Secrets = None,
    work_dir: WorkDir = None,
) -> Exit:
    """Copy one table that the running engine has delegated to another process."""
    from levada.cli.copy import copy as copy_table
    from levada.cli.manifests import folder, read

    manifests = read(manifest, secrets, work_dir)
    return copy_table(manifests, secrets, folder(manifest, manifests, work_dir), table, order)


@command()
def setup(
    offline_bundle: Annotated[
        Path | None,
        typer.Option("--offline-bundle", metavar="FILE", help="Write the jars into this file.", dir_okay=False),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--from-bundle", metavar="FILE", help="Take the jars from this file.", exists=True, dir_okay=False
        ),
    ] = None,
) -> Exit:
    """Find Java, and download the jars of the built-in destinations, so that a run needs no network for them."""
    from levada.cli.setup import setup as set_up

    return set_up(offline_bundle, bundle)


@command()
def doctor(output: Format = Output.TEXT) -> Exit:
    """Show versions, what is installed for each destination, and what is missing."""
    from levada.cli.doctor import doctor as show_machine

    return show_machine(output)


@command()
def schema() -> Exit:
    """Print the JSON schema of the manifests."""
    from levada.spec import json_schema

    write_json(json_schema())
    return Exit.OK


@command()
def version() -> Exit:
    """Print the version."""
    typer.echo(VERSION)
    return Exit.OK


def chosen(tables: list[str] | None, every: bool) -> list[str] | None:
    """Return the named tables, or None for all. Raise a usage error for neither or both."""
    if bool(tables) == every:
        raise typer.BadParameter("give table names, or --all", param_hint="TABLE")
    return tables or None


def share_of(text: str) -> float:
    """Return the share that a text such as ``1%`` or ``0.01`` means. Raise a usage error for any other text."""
    number, percent, rest = text.partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = 0.0
    if rest or not 0 < share <= 1:
        raise typer.BadParameter("must be a share above 0% and at most 100%, such as 1%", param_hint="--sample")
    return share


def debugging(ctx: typer.Context) -> bool:
    """Return True if ``--debug`` was given."""
    return bool(ctx.parent is not None and ctx.parent.params.get("debug"))
