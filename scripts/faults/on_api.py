"""Faults that hit the API, and the crowd that it has to bear."""

import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import yaml

from scripts.faults.losses import Outcome, document, held_by_two, losses, workers_that_ran
from scripts.faults.places import DEADLINE_S, Place, Process, stop, until
from tuner.app.client import Client
from tuner.core.study import StudyState


class Api:
    """`tuner serve --no-worker` on a port, to be killed and started again."""

    def __init__(self, place: Place) -> None:
        self._place = place
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.process = self.start()

    def start(self) -> Process:
        self.process = self._place.process(
            "api", "-m", "tuner.app.cli", "serve", "--no-worker", "--port", str(self._port)
        )
        return self.process

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=1).is_success
        except httpx.TransportError:
            return False


SMALL = {"kv_cache_dtype": "fp8", "mamba_ssm_cache_dtype": "float32", "max_num_batched_tokens": 8192}


def submit_until_accepted(url: str, name: str, trials: int) -> str:
    """As a careful client does: the same key until there is an answer."""
    body, key = yaml.safe_dump(document(name, trials, SMALL)).encode(), f"key-{name}"
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            with Client(url) as client:
                study: str = client.submit(body, key=key, new=True)["study"]
                return study
        except Exception as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} is never accepted: {error}") from error
            time.sleep(0.1)


def kill_api(place: Place, result: Outcome, kills: int) -> None:
    """kill -9 while clients submit, until that many kills; each submission must be there once."""
    api = Api(place)
    until(api.answers, "the API does not answer")
    killed = threading.Event()
    given: dict[str, str] = {}

    def submit_again_and_again(client: int) -> None:
        number = 0
        while not killed.is_set() or number == 0:
            name = f"api-{place.name}-{client}-{number}"
            given[name] = submit_until_accepted(api.url, name, 1)
            number += 1

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(submit_again_and_again, client) for client in range(4)]
        try:
            for _ in range(kills):
                time.sleep(random.uniform(0.05, 4.0))  # the first request to a new process takes the longest
                api.process.kill()
                api.process.wait()
                result.injected += 1
                api.start()
                until(api.answers, "the API does not answer")
        finally:
            killed.set()
        for done in clients:
            done.result()
    stop(api.process)
    with place.studies() as studies:
        stored = studies.find(text=f"api-{place.name}-", limit=100_000)
        ids = {study.id: study.name for study in stored}
        if len(stored) != len(given):
            result.losses.append(f"{len(given)} submissions are stored as {len(stored)} studies")
        result.losses += [f"{name} got another id" for name, study in given.items() if ids.get(study) != name]
        for study in stored:  # the next faults want the queue empty
            studies.request_cancel(study.id)
            if studies.get(study.id).state is not StudyState.CANCELLED:
                result.losses.append(f"study {study.id}, never begun, is {studies.get(study.id).state}")
    result.notes["submissions"] = len(given)


def crowd(place: Place, result: Outcome, studies_count: int, clients: int, workers: int, *options: str) -> None:
    """Many clients submit to several workers; every study ends, and was in one worker."""
    trials = 2
    api = Api(place)
    until(api.answers, "the API does not answer")
    names = [f"crowd-{place.name}-{number}" for number in range(studies_count)]
    processes = [place.worker("--lease-s", "20", *options) for _ in range(workers)]
    with ThreadPoolExecutor(clients) as pool:
        given = list(pool.map(lambda name: submit_until_accepted(api.url, name, trials), names))
    result.injected = len(given)
    for study in given:
        until(partial(place.ended, study), f"study {study} does not end")
    stop(api.process, *processes)
    if len(set(given)) != studies_count:
        result.losses.append(f"{studies_count} submissions made {len(set(given))} studies")
    for study in given:
        claims = place.lease(study)[1]  # a worker that is told to stop just then may leave an ended study's lease
        if claims != 1:
            result.losses.append(f"study {study} was claimed {claims} times")
        result.losses += losses(place, study, trials)
    result.losses += held_by_two(place, names)
    result.notes.update(clients=clients, workers=workers, workers_that_ran=workers_that_ran(place, names))
