"""The commands of the service: `serve`, `worker`, `submit`, `watch`, `cancel`, `token`. Part of `tuner`."""

import logging
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tuner.core.access import Scope

if TYPE_CHECKING:
    from tuner.app.client import Client, Told

DEFAULT_PORT = 8321

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)

StudyArgument = Annotated[str, typer.Argument(help="A study's id.", show_default=False)]
DbOption = Annotated[
    str | None, typer.Option("--db", help="Database URL. [default: $TUNER_DB, else a file in your home]")
]
ServerOption = Annotated[
    str | None,
    typer.Option("--server", help="URL of the service; its token is in $TUNER_TOKEN. [default: $TUNER_SERVER]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

token_app = typer.Typer(help="Access tokens of the service, in its database.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands to `tuner`."""
    for command in (serve, worker, submit, watch, cancel):
        app.command()(command)
    app.add_typer(token_app, name="token")


def connect(server: str | None) -> "Client":
    from tuner.app.client import Client
    from tuner.app.settings import ClientSettings

    settings = ClientSettings()
    return Client(server or settings.server, settings.token.get_secret_value() if settings.token else None)


def _log_to_stderr() -> None:
    """Our own lines, and warnings of the libraries."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    for name in ("tuner", "api"):
        logging.getLogger(name).setLevel(logging.INFO)


def serve(
    db: DbOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on; beyond this machine only with tokens.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535)] = DEFAULT_PORT,
    worker: Annotated[bool, typer.Option("--worker/--no-worker", help="Also run the studies.")] = True,
) -> None:
    """Serve studies over HTTP, and run them one after the other."""
    from tuner.app.serve import Address, database_url
    from tuner.app.serve import serve as run

    _log_to_stderr()
    address = Address(host=host, port=port)
    doors = "for this machine only" if address.loopback else "for whoever has a token"
    err.print(f"serving on http://{host}:{port} {doors}; API at /docs", markup=False)
    run(database_url(db), address, worker=worker)


def worker(
    db: DbOption = None,
    ends_with: Annotated[int | None, typer.Option(hidden=True, help="Stop when that process dies.")] = None,
) -> None:
    """Run queued studies of a database, one after the other; start as many workers as there are machines."""
    from tuner.app.serve import database_url
    from tuner.app.worker import work

    _log_to_stderr()
    work(database_url(db), ends_with=ends_with)


def submit(
    file: Annotated[Path, typer.Argument(help="A study file (YAML).", show_default=False)],
    server: ServerOption = None,
    new: Annotated[bool, typer.Option("--new", help="Open another study; do not join the unfinished one.")] = False,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency-Key: the same one opens nothing twice. [default: random]")
    ] = None,
    follow: Annotated[bool, typer.Option("--watch", help="Follow it to its end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send a study file to a service."""
    from tuner.app.cli import emit
    from tuner.core.study_file import read

    read(file)  # what is wrong with it is said without a server
    with connect(server) as client:
        answer = client.submit(file.read_bytes(), key=key or secrets.token_hex(16), new=new)
        if as_json:
            emit(answer)
        else:
            for study in answer["studies"]:
                out.print(study["study"])
        if follow:
            for study in answer["studies"]:
                _follow(client, study["study"])


def watch(study: StudyArgument, server: ServerOption = None, as_json: JsonOption = False) -> None:
    """Follow a study of a service to its end. Exits with 1 where it failed or was cancelled."""
    with connect(server) as client:
        _follow(client, study, as_json=as_json)


def _follow(client: "Client", study_id: str, *, as_json: bool = False) -> None:
    import json

    from tuner.app.errors import StoppedError

    for told in client.watch(study_id):
        if as_json:
            out.print(json.dumps({"id": told.id, "event": told.kind, "data": told.data}), markup=False)
        elif told.kind != "end":
            out.print(_line(told), markup=False)
    study = client.study(study_id)
    if study["state"] != "done":
        raise StoppedError(f"study {study_id} is {study['state']}: {study['reason']}")


def _line(told: "Told") -> str:
    from tuner.app.reading import one_line

    data = ", ".join(f"{name} {_short(value)}" for name, value in told.data.items() if name != "at")
    return one_line(f"{str(told.data.get('at', ''))[11:19]}  {told.kind.replace('_', ' ')}  {data}", 200)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def cancel(study: StudyArgument, server: ServerOption = None, as_json: JsonOption = False) -> None:
    """Ask a service to cancel a study; it is cancelled when its engines are gone."""
    from tuner.app.cli import emit

    with connect(server) as client:
        document = client.cancel(study)
        if as_json:
            emit(document)
        else:
            out.print(f"{document['state']}, cancel requested", markup=False)


def list_from_server(server: str | None, *, limit: int, as_json: bool) -> None:
    """`tuner list --server URL`."""
    from tuner.app.cli import emit
    from tuner.app.reading import one_line

    with connect(server) as client:
        found = client.studies(limit=limit)
    if as_json:
        emit({"studies": found})
        return
    table = Table("study", "state", "evaluator", "trials", "decision", "owner", "name", box=None, pad_edge=False)
    for study in found:
        contests: list[dict[str, Any]] = study["contests"]
        tried = sum(sum(contest["trials"].values()) for contest in contests)
        decisions = [f"{c['decision']['kind']} ({c['gpus']} GPUs)" for c in contests if c["decision"]]
        table.add_row(
            study["study"],
            study["state"],
            study["evaluator"],
            str(tried),
            ", ".join(decisions) or "-",
            study["owner"],
            one_line(study["name"]),
        )
    out.print(table, soft_wrap=False)


@token_app.command("create")
def token_create(
    name: Annotated[str, typer.Argument(help="Whose token it is.", show_default=False)],
    scope: Annotated[Scope, typer.Option(help="Each includes the ones before it.", show_default=False)],
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it, once; the database keeps its hash."""
    from tuner.app import tokens
    from tuner.app.cli import emit
    from tuner.app.serve import database_url

    with tokens.access(database_url(db)) as (stored, audit):
        token, secret = tokens.create(stored, audit, name, scope)
    if as_json:
        emit({"name": token.name, "scope": token.scope, "token": secret})
    else:
        out.print(secret, markup=False)
        err.print(f"token {token.name!r}, scope {token.scope}: it is not shown again", markup=False)


@token_app.command("list")
def token_list(db: DbOption = None, as_json: JsonOption = False) -> None:
    """List tokens by name, scope and age."""
    from tuner.app import tokens
    from tuner.app.cli import emit
    from tuner.app.serve import database_url

    with tokens.access(database_url(db)) as (stored, _):
        found = [{"name": t.name, "scope": t.scope, "created_at": t.created_at.isoformat()} for t in stored.all()]
    if as_json:
        emit({"tokens": found})
        return
    table = Table("name", "scope", "created", box=None, pad_edge=False)
    for token in found:
        table.add_row(token["name"], token["scope"], token["created_at"])
    out.print(table, soft_wrap=False)


@token_app.command("revoke")
def token_revoke(
    name: Annotated[str, typer.Argument(help="Whose token.", show_default=False)], db: DbOption = None
) -> None:
    """Take a token back at once."""
    from tuner.app import tokens
    from tuner.app.serve import database_url

    with tokens.access(database_url(db)) as (stored, audit):
        tokens.revoke(stored, audit, name)
    err.print(f"token {name!r} is revoked", markup=False)
