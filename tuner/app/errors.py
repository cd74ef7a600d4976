"""Which exception is which exit code. What is not in this table is a bug and goes through."""

from search_spaces.space import SpaceError
from tuner.core.acceptance import AcceptanceError
from tuner.core.decision import CardError
from tuner.core.export import NothingToExportError
from tuner.core.study import IllegalStateError, LeaseLostError, UnknownStudyError
from tuner.core.study_file import StudyFileError
from tuner.core.vllm_args import RenderError
from tuner.predict import PredictError


class WrongInputError(ValueError):
    """Something that the user can put right; the message says what."""


class StoppedError(RuntimeError):
    """A study ended without a result, or could not begin; the message says why."""


def exit_code(error: Exception) -> int | None:
    """1 failed, 2 wrong input, 3 nothing measured and confirmed to export; None for a bug."""
    from db.errors import DatabaseError, DatabaseUrlError

    codes: list[tuple[tuple[type[Exception], ...], int]] = [
        ((NothingToExportError,), 3),
        (
            (
                StudyFileError,
                PredictError,
                SpaceError,
                AcceptanceError,
                CardError,
                RenderError,
                UnknownStudyError,
                WrongInputError,
                DatabaseUrlError,
            ),
            2,
        ),
        ((StoppedError, LeaseLostError, IllegalStateError, DatabaseError, OSError), 1),
    ]
    return next((code for types, code in codes if isinstance(error, types)), None)
