"""`levada init`: asks for a source, looks at it, and writes a manifest and a folder with its Secret."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict

from levada import codes
from levada.cli.exit_codes import Exit
from levada.cli.new_manifest import NewPipeline, manifest_text
from levada.cli.output import console, working
from levada.errors import LevadaError, NeedsOperator
from levada.postgres.catalog import list_tables
from levada.postgres.connection import PostgresConnection
from levada.postgres.estimates import TableEstimate, estimate_tables
from levada.postgres.server_names import ServerNames
from levada.postgres.tls import SSL_MODES, trusted_certificates
from levada.printable import counted
from levada.private import private_file, private_folder
from levada.spec import load_manifests
from levada.spec.names import pipeline_name_problem
from levada.spec.source import TlsMode
from levada.values import MAX_PIPELINE_NAME, QualifiedTable

_LOOPBACK: Final = re.compile(r"localhost|127\.\d+\.\d+\.\d+|::1|/.*")
_MODES: Final = {ssl_mode: mode for mode, ssl_mode in SSL_MODES.items()}
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_OPTIONAL_TLS: Final = ("prefer", "allow")
_MANIFEST: Final = "pipeline.yaml"
_WHATEVER_MODE: Final = (codes.SOURCE_AUTH_FAILED, codes.CREDENTIALS_UNREADABLE)
"""Codes of logins that fail with any sslmode."""
_NAMES: Final = ServerNames(
    host="the DSN's host",
    database="the DSN's database",
    tls="the DSN's sslmode",
    login="the user and password in the DSN",
)
"""There is no manifest yet whose fields the hints could name."""


@dataclass(frozen=True, slots=True)
class InitOptions:
    """The arguments of the command. ``name`` has a default if it is empty, and ``lake`` if it is None."""

    dsn: str
    name: str
    lake: str | None
    folder: Path


def init(options: InitOptions) -> Exit:
    """Write ``pipeline.yaml`` and ``secrets`` into the folder, and print the next commands.

    Raise NeedsOperator ``file_exists`` rather than replace a file, a usage error for an invalid name, InvalidManifest
    for other values that no manifest can have, and the error of the source. Nothing is written then. Raise
    NeedsOperator ``folder_unusable`` if the folder cannot be written.
    """
    folder = options.folder.absolute()
    manifest, secrets = folder / _MANIFEST, folder / "secrets"
    given = _parameters(options.dsn)
    host, port = _address(given)
    database = given.get("dbname") or _ask("Database")
    name = options.name or _pipeline_name(str(database))
    if problem := pipeline_name_problem(name):
        raise typer.BadParameter(problem, param_hint="--name")
    lake = folder / "lake" if options.lake is None else _lake_folder(options.lake)
    secret = f"{name}-source"
    _require_new(manifest, secrets / secret)
    user = given.get("user") or _ask("User", default="postgres")
    password = given.get("password", os.environ.get("PGPASSWORD"))
    password = _ask("Password", hidden=True) if password is None else password
    source = PostgresConnection(host, port, str(database), user=str(user), password=str(password), names=_NAMES)
    with working(f"looking at {source.where}"):
        tls, tables = _look(source, str(given.get("sslmode") or ""))
    new = NewPipeline(
        name=name,
        host=host,
        port=port,
        database=str(database),
        secret=secret,
        tls=tls,
        warehouse=f"file://{lake.absolute()}",
        staging="file://" + str(folder / "staging").replace("%", "%25"),
        tables=tables,
    )
    text = manifest_text(new)
    # Before the first file, as the name is part of a path.
    load_manifests(text, str(manifest))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_secret(secrets, secret, username=str(user), password=str(password))
        manifest.write_text(text)
    except OSError as error:
        raise NeedsOperator(
            "folder_unusable",
            f"cannot write the manifest and its Secret below {folder}: {error.strerror}",
            hint="set another folder with --dir",
        ) from error
    _show(new, manifest, secrets)
    return Exit.OK


def _parameters(dsn: str) -> dict[str, Any]:
    try:
        given = dict(conninfo_to_dict(dsn))
    except psycopg.Error:
        # libpq's message may quote the password, so it is not shown.
        raise typer.BadParameter(
            "must be a connection string of PostgreSQL, such as postgresql://USER@HOST:5432/DATABASE", param_hint="DSN"
        ) from None
    if "@" in str(given.get("host", "")):
        # What is before the @ is a part of the password, so it is not shown.
        raise typer.BadParameter("has an @ in its user or password, where it must be %40", param_hint="DSN")
    if given.get("service"):
        raise typer.BadParameter("names a service. Give its host, port, database and user instead", param_hint="DSN")
    if given.get("sslmode") not in (None, "", *_MODES, *_OPTIONAL_TLS):
        raise typer.BadParameter(f"has an unknown sslmode. Known are {', '.join(_MODES)}", param_hint="DSN")
    return given


def _lake_folder(given: str) -> Path:
    """Return the folder of a path or of a file URI. Raise a usage error for another URI, and for a file."""
    scheme, _, rest = given.partition("://") if _URI.match(given) else ("", "", given)
    if not rest or scheme.lower() not in ("", "file") or (scheme and not rest.startswith("/")):
        raise typer.BadParameter(
            "must be a folder of this machine. For an object store or another catalog, run the command without --lake,"
            f" then edit spec.destination in {_MANIFEST}: see docs/cli.md#a-first-manifest",
            param_hint="--lake",
        )
    if Path(rest).is_file():
        raise typer.BadParameter(f"{given} is a file, and must be a folder", param_hint="--lake")
    return Path(rest)


def _address(given: dict[str, Any]) -> tuple[str, int]:
    host = str(given.get("host") or given.get("hostaddr") or _ask("Host", default="127.0.0.1"))
    port = str(given.get("port") or (5432 if given.get("dbname") else _ask("Port", default="5432")))
    if "," in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise typer.BadParameter("must name one host and one port", param_hint="DSN")
    return host, int(port)


def _ask(what: str, *, default: str | None = None, hidden: bool = False) -> str:
    """Ask on the terminal. Raise a usage error if there is none."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            f"has no {what.lower()}, and there is no terminal to ask on. All of it is in"
            " postgresql://USER:PASSWORD@HOST:5432/DATABASE",
            param_hint="DSN",
        )
    return str(typer.prompt(what, default="" if hidden else default, hide_input=hidden, show_default=not hidden))


def _pipeline_name(database: str) -> str:
    """Return the database's name as the name of a pipeline: lower-case letters, digits and hyphens."""
    name = re.sub(r"[^a-z0-9]+", "-", database.lower()).strip("-")[:MAX_PIPELINE_NAME].strip("-")
    return name if name[:1].isalpha() else f"pipeline-{name}".strip("-")[:MAX_PIPELINE_NAME]


def _require_new(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise NeedsOperator(
                "file_exists", f"{path} exists, and is not replaced", hint="remove it, or set another folder with --dir"
            )


def _look(source: PostgresConnection, ssl_mode: str) -> tuple[TlsMode, dict[QualifiedTable, TableEstimate | None]]:
    """Return the TLS mode with which the source can be reached, and its tables."""
    mode, connection = _connected(source, ssl_mode)
    with connection:
        tables = list_tables(connection)
        found = estimate_tables(connection, tables)
    return mode, {table: found.get(table) for table in tables}


def _connected(source: PostgresConnection, ssl_mode: str) -> tuple[TlsMode, psycopg.Connection[Any]]:
    """Connect with the given sslmode, or else with the safest one that the source accepts.

    An unencrypted connection is tried by itself only to this machine, because the password goes over it.
    """
    if ssl_mode in _MODES:
        modes = [_MODES[ssl_mode]]
    else:
        modes = [TlsMode.VERIFY_FULL, TlsMode.REQUIRE]
        modes += [TlsMode.DISABLE] if _LOOPBACK.fullmatch(source.host) or ssl_mode in _OPTIONAL_TLS else []
    for mode in modes:
        try:
            return mode, _with_mode(source, mode).connect(application="init")
        except LevadaError as error:
            if error.code in _WHATEVER_MODE:
                raise
            last = error
    if last.code == codes.SOURCE_TLS_FAILED and TlsMode.DISABLE not in modes:
        hint = "if the network is trusted, add ?sslmode=disable to the DSN"
        raise type(last)(last.code, last.message, hint=hint) from last
    raise last


def _with_mode(source: PostgresConnection, mode: TlsMode) -> PostgresConnection:
    return replace(source, sslmode=SSL_MODES[mode], sslrootcert=trusted_certificates(mode))


def _write_secret(secrets: Path, name: str, **keys: str) -> None:
    private_folder(secrets)
    private_folder(secrets / name)
    for key, value in keys.items():
        with private_file(secrets / name / key, "w") as file:
            file.write(value)


def _show(new: NewPipeline, manifest: Path, secrets: Path) -> None:
    lines = [
        f"found {counted(len(new.tables), 'table')}, with TLS mode {new.tls.value}",
        f"wrote {_short(manifest)} and {_short(secrets / new.secret)}",
        "next:",
    ]
    options = shlex.join([_short(manifest), "--secrets", _short(secrets)])
    for line in (*lines, f"  levada check {options}", f"  levada run {options}"):
        console().print(line, markup=False, soft_wrap=True)


def _short(path: Path) -> str:
    """Return the path relative to the current folder if it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
