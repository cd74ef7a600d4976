"""What a database may say no with, as one sentence for a person. Knows the drivers' codes, not our tables."""

import contextlib
from collections.abc import Iterator

from sqlalchemy import URL, exc


class DatabaseError(RuntimeError):
    """The database cannot be used, or cannot take what was written; the message names it and says why.

    A transaction during which this is raised has written nothing, except where the connection broke while it was
    committed: then the tables must be asked.
    """


class DatabaseUrlError(DatabaseError, ValueError):
    """The URL names no database that could be opened; the message says what a URL looks like."""


_HELD = (
    "another process has held it for too long; one that was stopped in the middle of a write (Ctrl-Z) holds the file "
    "until it goes on or is killed"
)
# By the beginning of SQLite's result code name, https://www.sqlite.org/rescode.html; the first that fits is said.
_SQLITE = {
    "SQLITE_FULL": "the disk is full",
    "SQLITE_READONLY": "it can only be read; check the permissions of the file and of its folder",
    "SQLITE_NOTADB": "that file is not an SQLite database",
    "SQLITE_CANTOPEN": "the file cannot be opened; check that the path is a file and its permissions",
    "SQLITE_PERM": "the file may not be opened; check its permissions",
    "SQLITE_BUSY": _HELD,
    "SQLITE_LOCKED": _HELD,
    "SQLITE_IOERR": "the disk gave an error",
    "SQLITE_CORRUPT": "the file is damaged",
}

# By the beginning of the SQLSTATE, https://www.postgresql.org/docs/current/errcodes-appendix.html.
_POSTGRES = {
    "08": "the connection broke",
    "25006": "it can only be read",
    "25P03": "a transaction was interrupted for too long, and nothing of it was written",
    "28": "it refused the user or the password",
    "3D000": "the server has no database of that name",
    "42P01": "it has no tables of ours yet; run `tuner db upgrade`",
    "42501": "the user may not do that",
    "53100": "the server's disk is full",
    "53300": "the server has too many connections",
    "57": "the server is stopping or starting",
}


def shown(url: URL) -> str:
    """The URL without its password."""
    return url.render_as_string(hide_password=True)


@contextlib.contextmanager
def explained(url: URL) -> Iterator[None]:
    """Turn what the driver raises into a DatabaseError where a person can do something about it.

    Raises:
        DatabaseError: the database is unreachable, full, read-only, damaged or not of ours.
        ValueError: a value that strict JSON cannot hold.
    """
    try:
        yield
    except exc.DBAPIError as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        raise DatabaseError(f"database {shown(url)}: {sentence}") from error
    except exc.TimeoutError as error:
        raise DatabaseError(f"database {shown(url)}: no connection became free: {error}") from error
    except exc.StatementError as error:
        if isinstance(error.orig, ValueError | TypeError):
            raise ValueError(f"not strict JSON: {error.orig}") from error
        raise


def is_away(error: BaseException) -> bool:
    """Whether a server cannot be reached, which may pass; an SQLite file has none."""
    return isinstance(error, exc.OperationalError) and not hasattr(error.orig, "sqlite_errorname")


def _sentence(error: exc.DBAPIError) -> str | None:
    """None where the statement is at fault, which is a bug of ours."""
    original = error.orig
    code = getattr(original, "sqlite_errorname", None)
    if code is not None:
        if code == "SQLITE_ERROR" and str(original).startswith("no such table"):
            return "it has no tables of ours yet; run `tuner db upgrade`"
        return _first(_SQLITE, code)
    state = getattr(original, "sqlstate", None)
    if state is not None:
        return _first(_POSTGRES, state)
    if isinstance(error, exc.OperationalError):  # psycopg gives no state where it did not get to talk to the server
        reason = " ".join(str(original).split())
        return f"the server cannot be reached: {reason}"
    return None


def _first(sentences: dict[str, str], code: str) -> str | None:
    return next((sentence for start, sentence in sentences.items() if code.startswith(start)), None)
