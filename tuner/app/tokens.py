"""Make, list and revoke access tokens in a database, each change in its audit log."""

import contextlib
from collections.abc import Iterator

from tuner.app.clock import SystemClock
from tuner.app.errors import WrongInputError
from tuner.core.access import AccessToken, AuditEntry, Scope, TokenNameError, make_token
from tuner.core.ports import Audit, Tokens

ACTOR = "cli"


@contextlib.contextmanager
def access(url: str) -> Iterator[tuple[Tokens, Audit]]:
    from db.access import SqlAudit, SqlTokens
    from db.engine import open_database, upgrade
    from db.sessions import Sessions

    engine = open_database(url)
    try:
        upgrade(engine)
        sessions = Sessions(engine)
        yield SqlTokens(sessions), SqlAudit(sessions)
    finally:
        engine.dispose()


def create(tokens: Tokens, audit: Audit, name: str, scope: Scope) -> tuple[AccessToken, str]:
    """The token and its secret, which is shown once and stored nowhere.

    Raises:
        WrongInputError: the name is taken, or cannot be one.
    """
    try:
        token, secret = make_token(name, scope, SystemClock().now())
        _record(audit, "token_create", name, {"scope": scope.value})
        tokens.add(token)
    except (TokenNameError, ValueError) as error:
        raise WrongInputError(str(error)) from error
    return token, secret


def revoke(tokens: Tokens, audit: Audit, name: str) -> None:
    """Raises WrongInputError where there is no such token."""
    if name not in [token.name for token in tokens.all()]:
        raise WrongInputError(f"there is no token named {name!r}")
    _record(audit, "token_revoke", name, {})
    tokens.revoke(name)


def _record(audit: Audit, action: str, name: str, detail: dict[str, object]) -> None:
    audit.record(AuditEntry(at=SystemClock().now(), actor=ACTOR, action=action, subject=name, detail=detail))
