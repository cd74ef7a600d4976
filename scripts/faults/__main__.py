"""Break a running service on purpose and count what was lost; it must be nothing.

Real processes: the API, workers, an engine's stand-in for each start, SQLite files and a PostgreSQL of its own.
Prints, for each database and fault, how many were injected and what was lost, and exits with 1 where anything was.

    python -m scripts.faults [--kills 20] [--only sqlite|postgres] [--faults NAME...] [-o RESULTS.json]
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from scripts.faults.losses import Outcome
from scripts.faults.on_api import crowd, kill_api
from scripts.faults.on_workers import fill_disk, kill_holders, kill_workers, pause_worker, restart_database
from scripts.faults.places import PLACES, Place


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--only", choices=list(PLACES))
    parser.add_argument("--faults", nargs="*", help="names of the faults to inject; all of them without")
    parser.add_argument("--studies", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    random.seed(asked.seed)
    outcomes: list[Outcome] = []
    for name, opens in PLACES.items():
        if asked.only in (None, name):
            with opens() as place:
                outcomes += list(_all(place, asked))
    total, lost = sum(o.injected for o in outcomes), sum(len(o.losses) for o in outcomes)
    print(f"faults injected {total}, losses {lost}")
    if asked.output:
        asked.output.write_text(json.dumps([asdict(o) for o in outcomes], indent=2) + "\n")
    return 1 if lost else 0


def _all(place: Place, asked: argparse.Namespace) -> Iterator[Outcome]:
    few = max(1, asked.kills // 4)
    faults: dict[str, Callable[[Outcome], None]] = {
        "worker-killed": lambda r: kill_workers(place, r, asked.kills),
        "worker-paused": lambda r: pause_worker(place, r, 3),
        "log-disk-full": lambda r: fill_disk(place, r, 40),
        "holder-killed": lambda r: kill_holders(place, r, few),
        "api-killed": lambda r: kill_api(place, r, few),
        "crowd": lambda r: crowd(place, r, asked.studies, 20, 3),
    }
    if place.restart is not None:
        faults["database-restarted"] = lambda r: restart_database(place, r, 3)
    for name, inject in faults.items():
        if not asked.faults or name in asked.faults:
            yield injected(place, name, inject)


def injected(place: Place, name: str, inject: Callable[[Outcome], None]) -> Outcome:
    outcome = Outcome(place.name, name)
    began = time.monotonic()
    try:
        inject(outcome)
    except TimeoutError as error:
        outcome.losses.append(str(error))
    finally:
        place.end_all()
    outcome.seconds = round(time.monotonic() - began, 1)
    print(
        f"{place.name:9} {name:19} injected {outcome.injected:3}, losses {len(outcome.losses)}, "
        f"{outcome.seconds:.0f} s {outcome.notes or ''}",
        flush=True,
    )
    for sentence in outcome.losses[:10]:
        print(f"    {sentence}", flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
