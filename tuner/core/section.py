"""What every part of a study file is made of. Knows no part."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class StudyFileError(ValueError):
    """A study file that cannot be used. The message names each key and what is wrong with it."""


def as_list(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


Positive = Annotated[int, Field(gt=0, strict=True)]
PositiveList = Annotated[tuple[Positive, ...], BeforeValidator(as_list), Field(min_length=1, max_length=32)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
