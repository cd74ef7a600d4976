"""Run a study file in this process: open or resume its study, take the lease, live the loop, show the progress."""

import time
from collections.abc import Mapping
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tuner.app import interrupts, wiring
from tuner.app.clock import SystemClock
from tuner.app.errors import StoppedError
from tuner.core.loop import Loop, StudyFailedError
from tuner.core.plan import Plan, plan, refuse_hopeless
from tuner.core.ports import Studies
from tuner.core.starts import LEASE_S, StudyCancelledError
from tuner.core.study import Lease, LeaseLostError, Study, StudyState
from tuner.core.study_file import StudyFile
from tuner.core.use_cases import open_studies, revalidate, staleness


def run_file(file: StudyFile, studies: Studies, *, new: bool, console: Console) -> list[str]:
    """The ids of the studies of that file, each run to its end.

    Raises:
        StudyFileError, SpaceError, WrongInputError: nothing was opened.
        StoppedError: a study failed, was cancelled, or is held by another process.
    """
    for part in file.parts:
        refuse_hopeless(part, plan(part, wiring.checks_of(part)).cost)
    with wiring.parts(file.parts[0], studies, lambda _kind, _data: None):
        pass  # an engine that is not there is said before a study is opened
    opened = open_studies(file, studies, SystemClock(), new=new)
    for study in opened:
        run_study(study, studies, plan(study.file, wiring.checks_of(study.file)), console)
    return [study.id for study in opened]


def revalidate_study(studies: Studies, study_id: str, *, if_stale: bool, console: Console) -> str:
    """The id of the study that measured the winners again; of the old one where nothing has changed and `if_stale`."""
    study = studies.get(study_id)
    evaluator = wiring.evaluator_of(study.file)
    try:
        changed = staleness(studies, study, evaluator.fingerprint)
    finally:
        evaluator.close()
    for gpus, reasons in changed.items():
        state = f"stale: {'; '.join(reasons)}" if reasons else "nothing has changed since it was validated"
        console.print(f"{gpus} GPUs: {state}", markup=False)
    if if_stale and not any(changed.values()):
        return study_id
    again = revalidate(studies, study, SystemClock())
    run_study(again, studies, plan(again.file, wiring.checks_of(again.file)), console)
    return again.id


def run_study(study: Study, studies: Studies, what: Plan, console: Console) -> None:
    verb = "opened" if study.state is StudyState.QUEUED else "resumed"
    console.print(f"{verb} study {study.id}: {study.name}", markup=False, highlight=False)
    lease = studies.claim(wiring.owner(), ttl_s=LEASE_S, study_id=study.id)
    lease = lease or _wait_for_lease(study, studies, console)
    bar = _Bar(console, what)
    try:
        with (
            bar.progress,
            interrupts.at_pulses() as pulse,
            wiring.parts(study.file, studies, bar.tell) as parts,
        ):
            loop = Loop(study, lease, replace(parts, pulse=pulse))
            try:
                loop.run()
            except StudyFailedError as error:
                studies.set_state(loop.lease, StudyState.FAILED, str(error))
                raise StoppedError(f"study {study.id} failed: {error}") from error
            except StudyCancelledError as error:
                studies.set_state(loop.lease, StudyState.CANCELLED, "cancelled on request")
                raise StoppedError(f"study {study.id} was cancelled") from error
            finally:
                lease = loop.lease
    finally:
        try:
            studies.release(lease)
        except LeaseLostError:
            console.print("another worker has taken the study over")


def _wait_for_lease(study: Study, studies: Studies, console: Console) -> Lease:
    """A worker that was killed cannot give its lease back: it runs out by itself."""
    console.print(f"waiting for the lease of {study.id}: another process holds it, or died less than {LEASE_S:g} s ago")
    deadline = time.monotonic() + LEASE_S + 5
    while time.monotonic() < deadline:
        lease = studies.claim(wiring.owner(), ttl_s=LEASE_S, study_id=study.id)
        if lease is not None:
            return lease
        time.sleep(1)
    raise StoppedError(f"study {study.id} is being run by another process")


class _Bar:
    """One line for each GPU count, and one for each thing worth reading."""

    def __init__(self, console: Console, what: Plan) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[best]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks = {
            contest.gpus: self.progress.add_task(f"{contest.gpus} GPUs", total=contest.trials + 1, best="")
            for contest in what.contests
        }
        self._best: dict[int, float] = {}

    def tell(self, kind: str, data: Mapping[str, object]) -> None:
        gpus = data.get("gpus")
        if kind == "trial_finished" and isinstance(gpus, int):
            ratio = data.get("ratio")
            if isinstance(ratio, float) and data.get("feasible"):
                self._best[gpus] = max(ratio, self._best.get(gpus, 0.0))
            best = f"best {self._best[gpus]:.3f} x baseline" if gpus in self._best else ""
            self.progress.update(self._tasks[gpus], advance=1, best=best)
            if not self.progress.console.is_terminal:  # a log has no bar
                what = f"{ratio:.3f} x baseline" if isinstance(ratio, float) else str(data.get("outcome"))
                self._say(f"{gpus} GPUs: trial {data['trial']}: {what}")
            if data.get("outcome") == "failed":
                self._say(f"trial {data['trial']} failed ({data['kind']}): {data['reason']}")
        elif kind in _WORDS:
            self._say(_WORDS[kind].format(**data))

    def _say(self, text: str) -> None:
        self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


_WORDS = {
    "study_running": "searching {feasible} feasible of {points} points",
    "trial_rejected": "trial {trial} rejected: {reason}",
    "trial_retried": "trial {trial} is tried again after {kind}: {reason}",
    "start_lost": "start {start} was left behind by a worker that died; its processes are gone",
    "baseline_failed": "no comparison for {gpus} GPUs: {reason}",
    "search_stopped": "{gpus} GPUs: {reason}",
    "confirming": "confirming {finalists} finalist(s) for {gpus} GPUs on {starts} fresh starts",
    "slot_done": "confirmation {gpus} GPUs: start {done} of {starts}, {side}",
    "quality_checking": "checking the output of {candidate} on the decode path",
    "decided": "decision for {gpus} GPUs: {kind}",
}
