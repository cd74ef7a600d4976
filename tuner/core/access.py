"""Who may do what, and what was done: tokens, their scopes, the audit log. Knows no HTTP and no storage."""

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

TOKEN_PREFIX = "tuner_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class Scope(StrEnum):
    """Each includes the ones before it."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    def allows(self, needed: "Scope") -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(needed)


class TokenNameError(ValueError):
    """A token cannot have that name; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessToken:
    """digest: SHA-256 of the secret in hexadecimal. The secret has 256 random bits, so a plain hash cannot be guessed
    from and a slow one would protect nothing more; it is shown once and kept nowhere."""

    name: str
    scope: Scope
    digest: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who asks. name: of the token; `local` where the server runs without tokens, `cli` for a command on the host."""

    name: str
    scope: Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One change. id: grows within the database; 0 before it is stored.   subject: a study's id, a token's name."""

    at: datetime
    actor: str
    action: str
    subject: str
    detail: Mapping[str, object] = field(default_factory=dict)
    id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What an Idempotency-Key stands for. body_digest: SHA-256 of what was asked.   study_ids: chosen before they are
    created, so that a server that died in between creates the same ones when it is asked again."""

    actor: str
    key: str
    body_digest: str
    study_ids: tuple[str, ...]
    at: datetime


class KeyReusedError(ValueError):
    """That Idempotency-Key was sent with another body before."""


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def make_token(name: str, scope: Scope, now: datetime) -> tuple[AccessToken, str]:
    """The token to store and the secret to show once.

    Raises:
        TokenNameError
    """
    if not _NAME.fullmatch(name):
        raise TokenNameError(
            f"name {name!r}: a token's name has 1 to 64 letters, digits and . _ @ -, and begins with a letter or digit"
        )
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    return AccessToken(name=name, scope=scope, digest=digest_of(secret), created_at=now), secret
