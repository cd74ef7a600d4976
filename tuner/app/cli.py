"""The `tuner` command. Reads arguments, calls one use case, prints; knows nothing of how the parts are made."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Column, Table

from tuner.app import cli_kernels, cli_service, interrupts
from tuner.core.study_file import load

if TYPE_CHECKING:
    from tuner.core.plan import Plan

DONE, FAILED, WRONG_INPUT, NOTHING_TO_EXPORT, INTERRUPTED = 0, 1, 2, 3, 130
TABLE = "table"  # the export format of kernel studies

app = typer.Typer(
    name="tuner",
    help="Search for, prove and emit the best vLLM configuration for a model, a machine and a workload.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
db_app = typer.Typer(help="The database.", no_args_is_help=True)
app.add_typer(db_app, name="db")

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)

FileArgument = Annotated[Path, typer.Argument(help="A study file (YAML).", show_default=False)]
StudyArgument = Annotated[str, typer.Argument(help="A study's id, or its beginning.", show_default=False)]
StudyOrGroup = Annotated[str, typer.Argument(help="A study's id or its beginning, or a group.", show_default=False)]
DbOption = Annotated[
    str | None, typer.Option("--db", help="Database URL. [default: $TUNER_DB, else a file in your home]")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
AllowUnvalidated = Annotated[
    bool, typer.Option("--allow-unvalidated", help="Export the best candidate although nothing was proved.")
]


def main() -> NoReturn:
    """Exit codes: 0 done, 1 failed, 2 wrong input, 3 nothing measured and confirmed to export, 130 interrupted."""
    interrupts.install()
    try:
        code = app(standalone_mode=False)
    except interrupts.Interrupted:
        err.print("interrupted; every engine was stopped, and the same command resumes the study")
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the table of exit codes; what is not in it is a bug and goes through
        code = _code_of(error)
    sys.stdout.flush()
    sys.exit(code if isinstance(code, int) else DONE)


def _code_of(error: Exception) -> int:
    """Raises the error itself where it is a bug."""
    show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if callable(show) and isinstance(code, int):  # a wrong argument; typer keeps click's exceptions to itself
        show()
        return WRONG_INPUT
    from tuner.app.errors import exit_code

    code = exit_code(error)
    if code is None:
        raise error
    for line in str(error).splitlines() or [type(error).__name__]:
        err.print(line, markup=False)
    return code


def emit(document: Mapping[str, Any]) -> None:
    """One JSON object on standard output; strict JSON, so no NaN can leave."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@app.command()
def check(file: FileArgument, db: DbOption = None, as_json: JsonOption = False) -> None:
    """Say what a study would do: points, feasible ones, rejections by rule, starts and GPU hours, and how many starts
    the noise of earlier studies asks for. Runs nothing."""
    from tuner.app.noise import noise_documents, print_noise
    from tuner.app.reading import plan_document
    from tuner.app.wiring import checks_of
    from tuner.core.plan import plan

    asked = load(file)
    plans = [plan(part, checks_of(part)) for part in asked.parts]
    noise = noise_documents(asked.parts, db)
    if as_json:
        documents = [{**plan_document(asked.name, what), **said} for what, said in zip(plans, noise, strict=True)]
        emit(documents[0] if len(documents) == 1 else {"name": asked.name, "studies": documents})
        return
    for what in plans:
        _print_plan(what, named=len(plans) > 1)
    for said in noise[:1] if noise.count(noise[0]) == len(noise) else noise:
        print_noise(out, said)


def _print_plan(what: "Plan", *, named: bool) -> None:
    """named: say which problem it is for."""
    if named:
        out.print(f"[bold]{what.workloads[0].key}[/]")
    out.print(f"[bold]{what.points}[/] points, [bold]{what.feasible}[/] feasible")
    table = Table("rejected by", "points", "because", box=None, pad_edge=False)
    for name, count in what.rejected.items():
        table.add_row(name, str(count), what.sentences.get(name, ""))
    out.print(table, soft_wrap=False)
    starts = ", ".join(f"{count} {reason}" for reason, count in what.cost.starts.items())
    out.print(f"starts: {sum(what.cost.starts.values())} ({starts})")
    out.print(
        f"GPU hours: {what.cost.gpu_hours:.1f} at {what.cost.start_minutes:g} minutes a start (an estimate); "
        f"at least {what.cost.least_gpu_hours:.1f} to reach the confirmation",
    )


@app.command()
def run(
    file: FileArgument,
    db: DbOption = None,
    new: Annotated[bool, typer.Option("--new", help="Open another study; do not resume.")] = False,
    as_json: JsonOption = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Also export what it decided here.")] = None,
    allow_unvalidated: AllowUnvalidated = False,
) -> None:
    """Run a study in this process, or resume the unfinished one of the same file."""
    from tuner.app import reading
    from tuner.app.running import run_file
    from tuner.app.wiring import connected

    asked = load(file)
    with connected(db) as studies:
        study_ids = run_file(asked, studies, new=new, console=err)
        documents = [reading.study_document(studies, study_id) for study_id in study_ids]
        if as_json:
            emit(documents[0] if len(documents) == 1 else {"studies": documents})
        else:
            for study_id in study_ids:
                reading.print_study(out, studies, study_id)
        if output is not None and asked.problems:
            group = studies.get(study_ids[0]).group or study_ids[0]
            reading.export_table(studies, group, output=output, allow_unvalidated=allow_unvalidated, console=err)
        elif output is not None:
            for study_id in study_ids:
                reading.export_all(studies, study_id, output=output, allow_unvalidated=allow_unvalidated, console=err)


@app.command("list")
def list_studies(
    db: DbOption = None,
    server: cli_service.ServerOption = None,
    as_json: JsonOption = False,
    limit: int = 50,
    group: Annotated[str | None, typer.Option(help="Only the studies of one file's problems.")] = None,
) -> None:
    """List studies, newest first; with --server those of a service."""
    from tuner.app import reading
    from tuner.app.wiring import connected

    if server is not None:
        cli_service.list_from_server(server, limit=limit, as_json=as_json)
        return
    with connected(db) as studies:
        found = studies.find(limit=limit) if group is None else studies.group(group)
        if as_json:
            emit({"studies": [reading.summary(studies, study) for study in found]})
            return
        table = Table("study", "state", "evaluator", "decision", "name", box=None, pad_edge=False)
        for study in found:
            row = reading.summary(studies, study)
            table.add_row(
                study.id,
                study.state,
                study.file.evaluator,
                ", ".join(row["decisions"]) or "-",
                reading.one_line(study.name),
            )
        out.print(table, soft_wrap=False)


@app.command()
def show(study: StudyOrGroup, db: DbOption = None, as_json: JsonOption = False) -> None:
    """Show a study: its trials, its decisions, and how its time was spent; or each study of a group."""
    from tuner.app import reading
    from tuner.app.wiring import connected

    with connected(db) as studies:
        group = studies.group(study)
        if group:
            if as_json:
                emit({"group": study, "studies": [reading.study_document(studies, one.id) for one in group]})
            for one in [] if as_json else group:
                reading.print_study(out, studies, one.id)
            return
        study_id = reading.resolve(studies, study)
        if as_json:
            emit(reading.study_document(studies, study_id, trials=True))
        else:
            reading.print_study(out, studies, study_id, trials=True)


@app.command("export-config")
def export_config(
    study: StudyOrGroup,
    db: DbOption = None,
    format: Annotated[str, typer.Option("--format", help="vllm, cli or json; table for kernels.")] = "vllm",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File or folder; standard output without.")
    ] = None,
    allow_unvalidated: AllowUnvalidated = False,
    gpus: Annotated[int | None, typer.Option(help="Which GPU count's decision. [default: the largest]")] = None,
) -> None:
    """Write the configuration that a study decided on, with its environment and evidence."""
    from tuner.app import reading
    from tuner.app.wiring import connected

    with connected(db) as studies:
        if format == TABLE:
            reading.export_table(studies, study, output=output, allow_unvalidated=allow_unvalidated, console=err)
            return
        reading.export_to(
            studies,
            reading.resolve(studies, study),
            output=output,
            allow_unvalidated=allow_unvalidated,
            console=err,
            format=format,
            gpus=gpus,
        )


@app.command("export-optuna")
def export_optuna(
    study: StudyArgument,
    file: Annotated[Path, typer.Argument(help="SQLite file to write; must not exist.", show_default=False)],
    db: DbOption = None,
) -> None:
    """Write a study's trials as an Optuna file, which optuna-dashboard opens."""
    from tuner.app import optuna_file, reading
    from tuner.app.wiring import connected

    with connected(db) as studies:
        found = studies.get(reading.resolve(studies, study))
        count = optuna_file.export_optuna(studies, found, file)
    err.print(f"{count} trials written to {file}", markup=False)


@app.command()
def revalidate(
    study: StudyArgument,
    db: DbOption = None,
    if_stale: Annotated[bool, typer.Option("--if-stale", help="Only where the environment has changed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure a study's validated winners and their baselines again, and nothing else."""
    from tuner.app import reading
    from tuner.app.running import revalidate_study
    from tuner.app.wiring import connected

    with connected(db) as studies:
        study_id = revalidate_study(studies, reading.resolve(studies, study), if_stale=if_stale, console=err)
        if as_json:
            emit(reading.study_document(studies, study_id))
        else:
            reading.print_study(out, studies, study_id)


@app.command()
def predict(file: FileArgument, as_json: JsonOption = False) -> None:
    """Predict decode steps, term by term, with intervals and what they rest on. Nothing is run."""
    from tuner.app.predicting import predict_document, print_predictions

    asked = load(file)
    if as_json:
        emit(predict_document(asked))
    else:
        print_predictions(out, asked)


@app.command()
def doctor(
    python: Annotated[
        Path | None, typer.Option("--python", help="The interpreter that has vLLM. [default: $TUNER_ENGINE_PYTHON]")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what an engine offers: versions, platform, devices, Kimi K3 support, our plug-in."""
    from tuner.app.wiring import examine_engine

    findings = examine_engine(python)
    if as_json:
        emit({"findings": [asdict(finding) for finding in findings]})
    else:
        table = Table("", "", Column("", overflow="fold"), box=None, pad_edge=False, show_header=False)
        for finding in findings:
            mark = {True: "ok", False: "BAD", None: ""}[finding.good]
            table.add_row(mark, finding.name, finding.text)
        out.print(table, soft_wrap=False)
    if any(finding.good is False for finding in findings):
        raise typer.Exit(FAILED)


@app.command()
def verify(
    card: Annotated[Path, typer.Argument(help="An evidence card (NAME.card.json).", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Recompute every number of an evidence card from the raw samples in it."""
    from tuner.app.errors import StoppedError, WrongInputError
    from tuner.core.card import verify as verify_card
    from tuner.engines.traffic import recomputed

    try:
        text = card.read_text(encoding="utf-8")
    except OSError as error:
        raise WrongInputError(f"{card}: {error.strerror}") from error
    mismatches = verify_card(text, recomputed)
    if as_json:
        emit({"card": str(card), "holds": not mismatches, "mismatches": [asdict(found) for found in mismatches]})
    for found in mismatches if not as_json else []:
        err.print(f"{found.where}: the card says {found.stated}, its samples give {found.recomputed}", markup=False)
    if mismatches:
        raise StoppedError(f"{card}: {len(mismatches)} numbers do not follow from their samples")
    if not as_json:
        out.print(f"{card}: every number follows from its samples", markup=False)


cli_service.register(app)
cli_kernels.register(app)


@db_app.command("upgrade")
def db_upgrade(db: DbOption = None) -> None:
    """Create the tables, or bring them to this version."""
    from tuner.app.wiring import connected

    with connected(db):
        err.print("the database is at this version")


if __name__ == "__main__":
    main()
