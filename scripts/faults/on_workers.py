"""Faults that hit a worker: killed, paused past its lease, without a disk or a database, killed while it holds GPUs."""

import random
import signal
import time
from functools import partial
from pathlib import Path

from scripts.faults.losses import Outcome, losses, opened, shared_gpus
from scripts.faults.places import Place, Process, stop, until


def kill_workers(place: Place, result: Outcome, kills: int) -> None:
    """kill -9 at random points, each time after the worker has claimed the study and told of a few events at most."""
    trials = 6 * kills
    study = opened(place, f"killed-{place.name}", trials)
    for _ in range(kills):
        process = place.worker()
        await_claim(place, study, process)
        _await_events(place, study, random.randrange(8))
        time.sleep(random.uniform(0.0, 0.3))
        if place.ended(study):
            result.losses.append("the study ended before every kill was done; give it more trials")
            stop(process)
            break
        process.kill()
        process.wait()
        result.injected += 1
    finish(place, study)
    result.losses += losses(place, study, trials)
    with place.studies() as studies:
        result.notes["starts lost and run again"] = sum(s.ended == "lost" for s in studies.starts(study))


def _await_events(place: Place, study: str, more: int) -> None:
    """By what happened, not by the clock: on a busy machine a second is nothing."""
    with place.studies() as studies:
        seen = max((event.id for event in studies.events(study, limit=10_000)), default=0)
        until(lambda: len(studies.events(study, after=seen)) >= more or studies.get(study).state.ended, "it hangs")


def pause_worker(place: Place, result: Outcome, times: int) -> None:
    """SIGSTOP for longer than its lease; another takes over; SIGCONT, and its late write must be refused."""
    trials = 40
    within = 0
    slow_logs = []
    for number in range(times):
        study = opened(place, f"paused-{place.name}-{number}", trials)
        slow = place.worker()
        await_claim(place, study, slow)
        slow_logs.append(place.log_of(slow))
        time.sleep(random.uniform(0.3, 1.0))
        within += _pause_between_writes(place, slow)
        result.injected += 1
        other = place.worker()
        await_claim(place, study, other)
        time.sleep(0.5)
        slow.send_signal(signal.SIGCONT)
        until(partial(place.ended, study), "the other worker does not end the study")
        until(partial(_was_refused, place.log_of(slow)), "the late write was not refused")
        stop(slow, other)
        result.losses += losses(place, study, trials)
    result.notes["paused within a write at first"] = within
    result.notes["late writes refused"] = sum(map(_was_refused, slow_logs))


def _pause_between_writes(place: Place, process: Process) -> int:
    """How often it was first paused within a write to SQLite, which holds the file: nobody else can write until it
    goes on, so nobody can take its study either, and there is no late write. PostgreSQL ends such a transaction."""
    for within in range(100):
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        if place.can_be_written():
            return within
        process.send_signal(signal.SIGCONT)
        time.sleep(random.uniform(0.05, 0.3))
    raise TimeoutError("it was paused within a write a hundred times")


def _was_refused(log: Path) -> bool:
    """By the lease; or, where it was paused within a transaction, with that transaction."""
    said = log.read_text(errors="replace")
    return "does not hold study" in said or "trying again" in said


def fill_disk(place: Place, result: Outcome, trials: int) -> None:
    """Every seventh log lies on a full disk; the trial is tried again."""
    study = opened(place, f"full-{place.name}", trials)
    finish(place, study, "--full-logs", "7")
    with place.studies() as studies:
        result.injected = sum(start.ended == "infrastructure" for start in studies.starts(study))
    result.losses += losses(place, study, trials)
    if result.injected == 0:
        result.losses.append("no log met a full disk; nothing was tried")


def restart_database(place: Place, result: Outcome, times: int) -> None:
    assert place.restart is not None
    trials = 20 * times
    study = opened(place, f"restarted-{place.name}", trials)
    process = place.worker()
    await_claim(place, study, process)
    for _ in range(times):
        time.sleep(random.uniform(0.5, 1.5))
        if place.ended(study):
            result.losses.append("the study ended before every restart was done; give it more trials")
            break
        place.restart()
        result.injected += 1
    until(lambda: place.ended(study), "the study does not end after the restarts")
    if process.poll() is not None:
        result.losses.append("the worker died of the restart")
    stop(process)
    result.losses += losses(place, study, trials)


def kill_holders(place: Place, result: Outcome, kills: int) -> None:
    """Three studies of 8 GPUs on a host of 16, their workers killed while engines hold the GPUs."""
    trials = 6 * kills
    count = 3
    options = ("--gpus", "16")
    studies = [opened(place, f"devices-{place.name}-{number}", trials) for number in range(count)]
    processes = [place.worker(*options) for _ in range(count)]
    for _ in range(kills):
        until(lambda: _holders(place, studies, processes) >= 2, "two workers never held a study at once")
        time.sleep(random.uniform(0.1, 0.8))
        victim = random.randrange(count)
        processes[victim].kill()
        processes[victim].wait()
        result.injected += 1
        processes[victim] = place.worker(*options)
    for study in studies:
        until(partial(place.ended, study), f"study {study} does not end")
    stop(*processes)
    for study in studies:
        result.losses += losses(place, study, trials)
    result.losses += shared_gpus(place)
    result.notes["GPUs given to an engine"] = len(list(place.folder.glob("engine-on-gpu-*")))
    if result.notes["GPUs given to an engine"] != 16:
        result.losses.append("not every GPU was ever used; nothing was tried")


def _holders(place: Place, studies: list[str], processes: list[Process]) -> int:
    if all(place.ended(study) for study in studies):
        raise TimeoutError("the studies ended before every kill was done; give them more trials")
    living = {f"faults:{process.pid}" for process in processes}
    return sum(place.lease(study)[0] in living for study in studies)


def await_claim(place: Place, study: str, process: Process) -> None:
    owner = f"faults:{process.pid}"
    until(lambda: place.lease(study)[0] == owner or place.ended(study), f"{owner} has not claimed {study}")


def finish(place: Place, study: str, *options: str) -> None:
    """A last worker that nobody disturbs."""
    process = place.worker(*options)
    until(lambda: place.ended(study), f"study {study} does not end")
    stop(process)
