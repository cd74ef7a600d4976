"""Transactions on an engine: read ones and writing ones, with what a database says no with in words."""

import contextlib
from collections.abc import Iterator

import tenacity
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from db.engine import WRITING
from db.errors import explained, is_away


class Sessions:
    """wait_s: how long a transaction that has not begun waits for a server that is away."""

    def __init__(self, engine: Engine, *, wait_s: float = 0.0) -> None:
        self._url = engine.url
        self._begin = tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_away),
            wait=tenacity.wait_random(0.2, 0.5),
            stop=tenacity.stop_after_delay(wait_s),
            reraise=True,
        )
        self._reads = sessionmaker(engine)
        self._writes = sessionmaker(engine.execution_options(**WRITING), expire_on_commit=False)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        with explained(self._url), self._reads() as session:
            self._begin(session.connection)
            yield session

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        with explained(self._url), self._writes.begin() as session:
            self._begin(session.connection)
            yield session
