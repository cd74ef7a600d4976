"""The style sheet and the vendored scripts, from this package, with an ETag. Knows no page."""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi.responses import Response

from api.problems import NotFoundError

TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
FOREVER = "public, max-age=31536000, immutable"  # a vendored file's name holds its version
SHORTLY = "max-age=300"


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    media_type: str
    etag: str
    cache: str


def answer(path: str, known: str) -> Response:
    """known: the browser's ETag. Raises NotFoundError."""
    asset = _assets().get(path)
    if asset is None:
        raise NotFoundError(f"there is no file {path!r}")
    headers = {"ETag": asset.etag, "Cache-Control": asset.cache, "X-Content-Type-Options": "nosniff"}
    if asset.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(asset.body, media_type=asset.media_type, headers=headers)


@cache
def _assets() -> dict[str, Asset]:
    """By path; nothing else can be asked for."""
    found = {}
    static = files("api.ui").joinpath("static")
    for folder, prefix, lasting in ((static, "", SHORTLY), (static.joinpath("vendor"), "vendor/", FOREVER)):
        for file in folder.iterdir():
            kind = file.name.rpartition(".")[2]
            if kind in TYPES:
                body = file.read_bytes()
                found[prefix + file.name] = Asset(
                    body, TYPES[kind], f'"{hashlib.sha256(body).hexdigest()[:20]}"', lasting
                )
    return found
