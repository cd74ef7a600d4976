"""A study file as a request's body: JSON or YAML, made a document or refused. Knows nothing of what it means."""

import json
from typing import Any

import yaml

from tuner.core.study_file import StudyFile, StudyFileError, parse

JSON_TYPES = ("application/json",)
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml")
LIMIT_BYTES = 1_000_000
_TOO_DEEP = "the body is nested too deeply"


class BodyError(ValueError):
    """The body is not what its media type says; the message says where."""


class BodyTooLargeError(ValueError):
    """It would take too much memory to read."""


class MediaTypeError(ValueError):
    """A body of that media type is not read here."""


class _Loader(yaml.SafeLoader):
    """Without aliases: a page of them can stand for more objects than there is memory."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise BodyError("a study file that is sent to a service cannot have YAML aliases")
        return super().compose_node(parent, index)


def read_study_file(content_type: str, body: bytes) -> StudyFile:
    """Raises BodyError, MediaTypeError; StudyFileError where the document is no study file."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type in JSON_TYPES:
        document = _json(body)
    elif media_type in YAML_TYPES:
        document = _yaml(body)
    else:
        raise MediaTypeError(f"send a study file as {JSON_TYPES[0]} or {YAML_TYPES[0]}, not {media_type or 'untyped'}")
    file = parse(document)
    _refuse_what_cannot_be_stored(file)
    return file


def _json(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=_no_constant)
    except RecursionError as error:
        raise BodyError(_TOO_DEEP) from error
    except ValueError as error:
        raise BodyError(f"the body is no JSON: {error}") from error


def _no_constant(name: str) -> Any:
    raise BodyError(f"{name} is no JSON")


def _yaml(body: bytes) -> Any:
    try:
        return yaml.load(body.decode("utf-8"), Loader=_Loader)
    except RecursionError as error:
        raise BodyError(_TOO_DEEP) from error
    except (yaml.YAMLError, ValueError) as error:
        raise BodyError(f"the body is no YAML: {error}") from error


def _refuse_what_cannot_be_stored(file: StudyFile) -> None:
    """Strict JSON in UTF-8 is what tables and answers hold: no NaN, no dates, no half of a character."""
    try:
        json.dumps(file.model_dump(mode="json"), allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise StudyFileError(f"a value cannot be stored: {error}") from error
