"""What an engine's processes said of the path of their decode steps. The writer is tuner_inside/path_proof.py."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "TUNER_PATH_PROOF"
FOLDER = "path-proof"  # of a start, beside its log


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps since the engine started. specialised, stock: uniform decode steps of up to 64 tokens, by the kernels they
    ran.   mixed: all others."""

    specialised: int = 0
    stock: int = 0
    mixed: int = 0

    def since(self, before: "Steps") -> "Steps":
        return Steps(self.specialised - before.specialised, self.stock - before.stock, self.mixed - before.mixed)

    @property
    def share(self) -> float | None:
        """Of the uniform decode steps, those that ran specialised kernels; None where there were none."""
        uniform = self.specialised + self.stock
        return self.specialised / uniform if uniform else None


def read(folder: Path) -> dict[str, Steps]:
    """By process; empty where none has written yet."""
    found = {}
    for path in sorted(folder.glob("path-*.json")):
        with contextlib.suppress(OSError, json.JSONDecodeError, KeyError):
            steps = json.loads(path.read_text(encoding="utf-8"))["steps"]
            found[path.stem] = Steps(steps["specialised"], steps["stock"], steps["mixed"])
    return found


def worst(before: dict[str, Steps], after: dict[str, Steps]) -> Steps | None:
    """The process with the least share between two readings, of those that ran uniform decode steps; None where none
    did. A process that does not run the model writes nothing that counts."""
    grown = [steps.since(before.get(name, Steps())) for name, steps in after.items()]
    shares = [(steps.share, steps) for steps in grown if steps.share is not None]
    return min(shares, key=lambda item: item[0])[1] if shares else None
