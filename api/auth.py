"""Who asks, and whether they may: bearer tokens and scopes. Knows no route and no storage."""

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.ports import Ports
from tuner.core.access import Actor, Scope, digest_of

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class UnauthorizedError(Exception):
    """No token, or one that is not known."""


class ForbiddenError(Exception):
    """The token's scope does not reach so far, or the request came through another host's name."""


_bearer = HTTPBearer(auto_error=False, description="A token of `tuner token create`.")


def ports_of(request: Request) -> Ports:
    ports: Ports = request.app.state.ports
    return ports


PortsOf = Annotated[Ports, Depends(ports_of)]


def needs(scope: Scope) -> Callable[..., Actor]:
    """A dependency that hands over who asks.

    Raises:
        UnauthorizedError, ForbiddenError
    """

    def actor(
        request: Request,
        ports: PortsOf,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    ) -> Actor:
        if credentials is not None:
            token = ports.tokens.find(digest_of(credentials.credentials))
            if token is None:
                raise UnauthorizedError("that token is not known here")
            if not token.scope.allows(scope):
                raise ForbiddenError(f"this needs the scope {scope}; token {token.name!r} has {token.scope}")
            return Actor(name=token.name, scope=token.scope)
        if ports.always_ask or ports.tokens.any():
            raise UnauthorizedError("send a token: `Authorization: Bearer …`; `tuner token create` makes one")
        # Without tokens the server trusts its own machine. A page in a browser there that reaches it by a name of its
        # own (DNS rebinding) is not the machine's user.
        if request.url.hostname not in LOOPBACK:
            raise ForbiddenError("without tokens this server answers to localhost only")
        # Nor is a page of another site that makes the browser post something here.
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise ForbiddenError("without tokens this server does not answer to pages of another site")
        return Actor(name="local", scope=Scope.ADMIN)

    return actor


Reader = Annotated[Actor, Depends(needs(Scope.READ))]
Writer = Annotated[Actor, Depends(needs(Scope.WRITE))]
Admin = Annotated[Actor, Depends(needs(Scope.ADMIN))]
