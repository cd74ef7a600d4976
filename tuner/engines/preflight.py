"""Ask the installed vLLM whether it would take a candidate, before a start is spent on it. A `Check`."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from search_spaces.candidate import Candidate
from search_spaces.rule import Reason
from search_spaces.serving import ServingConfig
from tuner.core import vllm_args
from tuner.engines.engine import Deadlines
from tuner.engines.helper import AnswerError, Helper, HelperError


class Preflight:
    """A question is answered once; a helper that does not answer refuses nothing, and the start will show."""

    def __init__(
        self,
        helper: Helper,
        model: vllm_args.ModelRef,
        folder: Path,
        version: str,
        deadlines: Deadlines,
        arguments: Sequence[str] = (),
    ) -> None:
        """arguments: what every start has behind its configuration."""
        self._helper = helper
        self._model = model
        self._folder = folder
        self._source = f"vLLM {version}, create_engine_config"
        self._deadlines = deadlines
        self._arguments = list(arguments)
        self._answers: dict[str, tuple[Reason, ...]] = {}

    def __call__(self, candidate: Candidate) -> Sequence[Reason]:
        if not isinstance(candidate, ServingConfig):
            return ()
        text = vllm_args.to_yaml(vllm_args.engine_options(candidate, self._model))
        if text not in self._answers:
            self._answers[text] = self._ask(text)
        return self._answers[text]

    def _ask(self, text: str) -> tuple[Reason, ...]:
        path = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.yaml"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            question = {"config": str(path), "arguments": self._arguments}
            answer = self._helper.ask(question, timeout_s=self._deadlines.request_s)
        except (HelperError, AnswerError, OSError):  # OSError: the disk is full, or the interpreter is gone
            return ()
        refusal = answer["refusal"]
        if refusal is None:
            return ()
        return (Reason(rule="vllm-refuses", sentence=_first_line(refusal), source=self._source),)


def _first_line(text: str) -> str:
    """Pydantic puts the field on the first lines and the reason on the next."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[:3])[:500]
