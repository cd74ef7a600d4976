"""Who looks at a page: the token of a cookie, under the rules of `auth`. Signs in and out."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials

from api.auth import PortsOf, needs
from tuner.core.access import Actor, Scope

COOKIE = "tuner_token"


def visitor(scope: Scope) -> object:
    """A dependency as `auth.needs`, for a browser: the cookie is SameSite=Strict, so no other site's page sends it."""
    check = needs(scope)

    def actor(request: Request, ports: PortsOf) -> Actor:
        secret = request.cookies.get(COOKIE)
        given = HTTPAuthorizationCredentials(scheme="Bearer", credentials=secret) if secret else None
        return check(request, ports, given)

    return Depends(actor)


Looking = Annotated[Actor, visitor(Scope.READ)]
Changing = Annotated[Actor, visitor(Scope.WRITE)]
