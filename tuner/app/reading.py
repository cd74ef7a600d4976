"""Studies as documents and as tables on a terminal; exports as files on disk."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from search_spaces.candidate import difference
from tuner.app.errors import WrongInputError
from tuner.core import task_accuracy
from tuner.core.accepted import by_position
from tuner.core.card import to_json
from tuner.core.card_page import to_markdown
from tuner.core.decision import QualityResult
from tuner.core.export import Format, plain_name, render
from tuner.core.graphs import without_graph
from tuner.core.measurement import held_s
from tuner.core.plan import Plan
from tuner.core.ports import Studies
from tuner.core.side_by_side import means, rows
from tuner.core.study import Study
from tuner.core.throttling import throttled
from tuner.core.trial import Failed, Measured, Rejected, Trial, fell_back
from tuner.core.use_cases import Outlook, evidence_card, origin_of, outlook, resolve, subject
from tuner.core.workload import ServingWorkload

__all__ = ["export_to", "one_line", "print_study", "resolve", "study_document", "summary"]


def one_line(text: str, width: int = 80) -> str:
    """Untrusted text for a terminal: no control characters, no markup, not longer than a line."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return (plain if len(plain) <= width else plain[: width - 1] + "…").replace("[", r"\[")


def plan_document(name: str, what: Plan) -> dict[str, Any]:
    return {
        "name": name,
        "workloads": [workload.key for workload in what.workloads],
        "points": what.points,
        "feasible": what.feasible,
        "rejected": dict(what.rejected),
        "starts": {**what.cost.starts, "total": sum(what.cost.starts.values())},
        "gpu_hours": round(what.cost.gpu_hours, 2),
        "least_gpu_hours": round(what.cost.least_gpu_hours, 2),
        "start_minutes": what.cost.start_minutes,
        "contests": [
            {"gpus": c.gpus, "feasible": len(c.candidates), "trials": c.trials, "baseline": c.baseline.values()}
            for c in what.contests
        ],
    }


def summary(studies: Studies, study: Study) -> dict[str, Any]:
    decided = [c.decision for c in studies.confirmations(study.id) if c.decision is not None]
    return {
        "study": study.id,
        "name": study.name,
        "state": study.state,
        "evaluator": study.file.evaluator,
        "group": study.group,
        "created_at": study.created_at.isoformat(),
        "decisions": [f"{decision.kind} ({decision.gpus} GPUs)" for decision in decided],
    }


def study_document(studies: Studies, study_id: str, *, trials: bool = False) -> dict[str, Any]:
    """`decision`, `winner` and `baseline` at the top are those of the largest GPU count; `contests` has them all."""
    study = studies.get(study_id)
    views = outlook(studies, study)
    contests = [_contest_document(view) for view in views]
    top = contests[-1] if contests else {"decision": None, "winner": None, "baseline": None}
    best = {view.gpus: view.best for view in views if view.best is not None}
    document: dict[str, Any] = {
        "study": study.id,
        "name": study.name,
        "group": study.group,
        "workloads": [workload.key for workload in study.file.workloads],
        "state": study.state,
        "origin": origin_of(study),
        "decision": top["decision"],
        "winner": top["winner"],
        "baseline": top["baseline"],
        "contests": contests,
        "side_by_side": [asdict(row) for row in rows(best, study.file.hardware.gpus)],
        "wall_time_s": wall_time(studies, study),
        "gpu_hours": round(gpu_hours(studies, study), 3),
        "throttled_starts": [asdict(start) for start in throttled(studies.measurements(study.id))],
    }
    if study.reason:
        document["reason"] = study.reason
    if trials:
        document["trials"] = [_trial_document(study, trial) for trial in studies.trials(study.id)]
    return document


def problem_name(study: Study) -> str:
    """Shape, rows and, where the file gives one, the layer's name."""
    return ", ".join(f"{p.n}x{p.k} m{p.m}" + (f" {p.name}" if p.name else "") for p in study.file.problems)


def wall_time(studies: Studies, study: Study) -> dict[str, float]:
    """Seconds that starts were held, by purpose, and how much of it was traffic rather than starting and stopping."""
    spent = held_s(studies.starts(study.id))
    traffic = sum(m.seconds for m in studies.measurements(study.id))
    rounded = {purpose: round(seconds, 1) for purpose, seconds in spent.items()}
    return {**rounded, "held": round(sum(spent.values()), 1), "traffic": round(traffic, 1)}


def gpu_hours(studies: Studies, study: Study) -> float:
    """That starts have held, whatever became of them."""
    return sum((start.held_s or 0.0) * start.gpus for start in studies.starts(study.id)) / 3600


def _contest_document(view: Outlook) -> dict[str, Any]:
    decision = view.decision
    return {
        "gpus": view.gpus,
        "trials": view.trials,
        "search_stopped": view.stopped or None,
        "decision": decision.kind if decision is not None else None,
        "sentence": decision.sentence if decision is not None else None,
        "winner": _candidate_document(view.best) if decision is None else _named(view, decision.winner_key),
        "baseline": _candidate_document(view.baseline),
        "quality": [asdict(result) for result in decision.quality] if decision is not None else [],
        "best_ratio_in_search": view.verdict.value if view.verdict is not None else None,
    }


def _named(view: Outlook, key: str | None) -> dict[str, Any] | None:
    for trial in (view.best, view.baseline):
        if trial is not None and trial.key == key:
            return _candidate_document(trial)
    return None if key is None else {"key": key}


def _candidate_document(trial: Trial | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    document = {"trial": trial.number, "key": trial.key, "config": trial.candidate.values(), "metrics": means(trial)}
    accepted = by_position(trial.outcome.measurements) if isinstance(trial.outcome, Measured) else {}
    return document | ({"acceptance_by_position": accepted} if accepted else {})


def _trial_document(study: Study, trial: Trial) -> dict[str, Any]:
    document: dict[str, Any] = {
        "number": trial.number,
        "key": trial.key,
        "gpus": trial.gpus,
        "baseline": trial.baseline,
        "chosen_by": trial.chosen_by,
        "attempts": trial.attempts,
        "config": trial.candidate.values(),
        "outcome": "running",
    }
    match trial.outcome:
        case Rejected(reasons=reasons):
            document |= {"outcome": "rejected", "reasons": [r.sentence for r in reasons]}
        case Failed(kind=kind, sentence=sentence, evidence=evidence):
            document |= {"outcome": "failed", "kind": kind, "reason": sentence, "evidence": evidence}
        case Measured():
            document |= {"outcome": "measured", "metrics": means(trial)}
    if fell_back(trial):
        document["fell_back"] = True
    if bare := without_graph(trial.candidate, study.file.workloads, study.file.engine):
        document["without_graph"] = bare
    return document


def print_study(console: Console, studies: Studies, study_id: str, *, trials: bool = False) -> None:
    study = studies.get(study_id)
    console.print(f"[bold]{one_line(study.name)}[/]  study {study.id}, {study.state}, {origin_of(study)}")
    if study.file.problems:
        console.print(f"problem {one_line(problem_name(study))}" + (f", group {study.group}" if study.group else ""))
    if study.reason:
        console.print(f"reason: {one_line(study.reason, 400)}")
    if trials:
        _print_trials(console, studies, study)
    views = outlook(studies, study)
    for view in views:
        _print_contest(console, study, view)
    _print_side_by_side(console, study, views)
    _print_ledger(console, studies, study)
    for start in throttled(studies.measurements(study.id)):
        console.print(f"start {start.start_id}: GPUs were throttled: {start.sentence()}", markup=False)
    spent = wall_time(studies, study)
    if spent["traffic"]:
        budget = study.file.budget.gpu_hours
        asked = f" of {budget:g}" if budget is not None else ""
        console.print(
            f"time held by engines: {spent['held']} s, of which traffic {spent['traffic']} s; "
            f"GPU hours: {gpu_hours(studies, study):.2f}{asked}"
        )


def _print_side_by_side(console: Console, study: Study, views: list[Outlook]) -> None:
    best = {view.gpus: view.best for view in views if view.best is not None}
    if len(best) < 2:
        return
    console.print(
        f"\nSide by side on {study.file.hardware.gpus} GPUs, {origin_of(study)} (the best of each; not one percentage)"
    )
    table = Table("workload", "engine", "tokens/s per user", "tokens/s per GPU", "users", box=None, pad_edge=False)
    for row in rows(best, study.file.hardware.gpus):
        table.add_row(
            row.workload_key,
            f"{row.replicas} x {row.gpus} GPUs",
            *("-" if value is None else f"{value:.4g}" for value in (row.per_user, row.per_gpu, row.users)),
        )
    console.print(table, soft_wrap=False)


def _print_ledger(console: Console, studies: Studies, study: Study) -> None:
    from tuner.app.predicting import study_ledger

    known = study_ledger(studies, study)
    if known is None:
        return
    console.print(f"\npredictions here: {known.sentence()}", markup=False)
    for entry in known.alarms:
        pair = entry.pair
        console.print(
            f"  ALARM {pair.name}: measured TPOT {pair.measured:.3f} ms, predicted {pair.predicted:.3f}", markup=False
        )


def _print_trials(console: Console, studies: Studies, study: Study) -> None:
    objective = study.file.objective.metric
    table = Table("trial", "GPUs", "chosen by", objective, "what became of it", box=None, pad_edge=False)
    baselines = {t.gpus: t for t in studies.trials(study.id) if t.baseline}
    for trial in studies.trials(study.id):
        values = [f"{m[objective]:.4g}" for m in means(trial).values() if objective in m]
        note = ""
        match trial.outcome:
            case None:
                note = "running"
            case Rejected(reasons=reasons):
                note = f"rejected: {reasons[0].sentence}"
            case Failed(kind=kind, sentence=sentence):
                note = f"{kind}: {sentence}"
            case Measured():
                changed = (
                    difference(trial.candidate, baselines[trial.gpus].candidate) if trial.gpus in baselines else {}
                )
                note = ", ".join(f"{name}={a}" for name, (a, _) in changed.items()) or "baseline"
                note = f"fell back to stock kernels; {note}" if fell_back(trial) else note
                bare = without_graph(trial.candidate, study.file.workloads, study.file.engine)
                note = "; ".join([*bare, note])
        table.add_row(str(trial.number), str(trial.gpus), trial.chosen_by, " ".join(values), one_line(note, 160))
    console.print(table, soft_wrap=False)


def _print_contest(console: Console, study: Study, view: Outlook) -> None:
    console.print(f"\n[bold]{view.gpus} GPUs[/]: {view.trials} trials")
    if view.stopped:
        console.print(one_line(view.stopped, 400))
    objective = study.file.objective.metric
    if view.best is not None and view.baseline is not None and view.verdict is not None:
        table = Table("workload", f"baseline {objective}", "best", "ratio", box=None, pad_edge=False)
        baseline = means(view.baseline)
        for key, metrics in means(view.best).items():
            ratio = view.verdict.ratios.get(key)
            table.add_row(
                key,
                f"{baseline[key].get(objective, float('nan')):.4g}",
                f"{metrics.get(objective, float('nan')):.4g}",
                f"{ratio:.3f}" if ratio is not None else "-",
            )
        console.print(table, soft_wrap=False)
        for name, (mine, theirs) in difference(view.best.candidate, view.baseline.candidate).items():
            console.print(f"  {name}: {theirs} -> {mine}", markup=False)
        _print_acceptance(console, study, view.best)
    if view.decision is not None:
        console.print(f"decision: [bold]{view.decision.kind}[/] - {one_line(view.decision.sentence, 400)}")
        for result in view.decision.quality:
            if not result.passed or result.name == task_accuracy.NAME:
                console.print(f"  {one_line(quality_line(result), 400)}")


def _print_acceptance(console: Console, study: Study, trial: Trial) -> None:
    """Of the best candidate, where it drafts: which positions of its drafts were accepted, and whose text that was."""
    if not isinstance(trial.outcome, Measured):
        return
    sources = {w.key: w.acceptance.source for w in study.file.workloads if isinstance(w, ServingWorkload)}
    for key, shares in by_position(trial.outcome.measurements).items():
        text = ", ".join(f"{share:.2f}" for share in shares)
        source = sources.get(key, "real")
        console.print(f"  accepted at {key} by position: {text}; {1 + sum(shares):.2f} tokens a step ({source})")


def quality_line(result: QualityResult) -> str:
    verdict = "passed" if result.passed else "FAILED"
    limit = f"{result.value:.3g}, at most {result.limit:.3g} {result.unit}"
    return f"{verdict} {result.name} of {result.candidate_key} at {result.at}: {limit} ({result.detail})"


def export_to(
    studies: Studies,
    study_id: str,
    *,
    output: Path | None,
    allow_unvalidated: bool,
    console: Console,
    format: str = "vllm",
    gpus: int | None = None,
) -> list[Path]:
    """Write the export, the file asked for first. Where no output is named, that one alone goes to standard output.

    Raises:
        NothingToExportError: nothing measured and confirmed.
        WrongInputError: an unknown format.
    """
    if format not in tuple(Format):
        raise WrongInputError(f"--format: {format!r} is unknown; there are {', '.join(Format)}")
    what = subject(studies, studies.get(study_id), gpus=gpus, allow_unvalidated=allow_unvalidated)
    if output is None:
        files = render(what, Format(format))
        sys.stdout.write(files.texts[files.main])
        return []
    is_folder = output.is_dir() or not output.suffix
    folder, name = (output, "") if is_folder else (output.parent, output.stem)
    files = render(what, Format(format), name)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    texts = dict(files.texts)
    card = evidence_card(studies, what)
    if card is not None:
        stem = name or Path(files.main).stem
        texts |= {f"{stem}.card.json": to_json(card), f"{stem}.card.md": to_markdown(card)}
    for file_name, text in texts.items():
        path = folder / (output.name if not is_folder and file_name == files.main else file_name)
        path.write_text(text, encoding="utf-8")
        console.print(f"wrote {path}", markup=False)
        written.append(path)
    return written


def export_table(
    studies: Studies, text: str, *, output: Path | None, allow_unvalidated: bool, console: Console
) -> list[Path]:
    """A group's tuned tiles, or one study's, as one JSON file. text: the group, or a study's id.

    Raises:
        NothingToExportError: no tile was validated.
        WrongInputError: the studies are of no kernel, or of several machines.
    """
    from kernels.table import to_json as table_json
    from tuner.app.tables import studies_of, tuned_table

    found = studies_of(studies, text)
    made = table_json(tuned_table(studies, found, allow_unvalidated=allow_unvalidated))
    if output is None:
        sys.stdout.write(made)
        return []
    path = output / f"{plain_name(found[0].name)}-tiles.json" if output.is_dir() or not output.suffix else output
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made, encoding="utf-8")
    console.print(f"wrote {path}", markup=False)
    return [path]


def export_all(
    studies: Studies, study_id: str, *, output: Path, allow_unvalidated: bool, console: Console
) -> list[Path]:
    """The export of every GPU count that was decided, into one folder."""
    decided = [c.gpus for c in studies.confirmations(study_id) if c.decision is not None]
    output.mkdir(parents=True, exist_ok=True)
    return [
        path
        for gpus in decided
        for path in export_to(
            studies, study_id, output=output, allow_unvalidated=allow_unvalidated, console=console, gpus=gpus
        )
    ]
