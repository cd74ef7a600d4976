"""How many tokens a draft yields per step, and where that figure comes from. Knows nothing of engines."""

from dataclasses import dataclass
from types import MappingProxyType


class AcceptanceError(ValueError):
    """An acceptance setting that cannot be right; the message names the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceCurve:
    """Measured acceptance length by draft length, for one model, draft, sampler and kind of text.

    lengths: number of draft tokens to mean tokens per step, 1 + accepted / drafts.
    source: where the figures were published, with date and hardware.
    """

    name: str
    model: str
    draft: str
    draft_sample_method: str
    rejection_sample_method: str
    text: str
    lengths: MappingProxyType[int, float]
    source: str

    def length(self, num_speculative_tokens: int) -> float:
        """Tokens per step for that many drafts; 1.0 for none.

        Raises:
            AcceptanceError: the curve was not measured at that draft length.
        """
        if num_speculative_tokens == 0:
            return 1.0
        if num_speculative_tokens not in self.lengths:
            known = ", ".join(map(str, self.lengths))
            raise AcceptanceError(
                f"acceptance curve {self.name!r} has no value for {num_speculative_tokens} drafts (known: {known})"
            )
        return self.lengths[num_speculative_tokens]


def _curve(values: list[float]) -> MappingProxyType[int, float]:
    return MappingProxyType(dict(enumerate(values, start=1)))


_GOLDEN = "InferenceX golden acceptance curves, SPEED-Bench coding, Kimi K3 on B300, read 2026-12-01"

_LAUNCH = (
    "vLLM's launch post of Kimi K3, 2026-07-27; the draft length is not restated beside the figures: 7 is the draft's "
    "block size; the sampler is that of the post's throughput figures"
)

CURVES: MappingProxyType[str, AcceptanceCurve] = MappingProxyType(
    {
        curve.name: curve
        for curve in (
            AcceptanceCurve(
                name="kimi-k3-dspark-coding",
                model="moonshotai/Kimi-K3",
                draft="Inferact/Kimi-K3-DSpark",
                draft_sample_method="greedy",
                rejection_sample_method="standard",
                text="coding",
                lengths=_curve([1.84, 2.45, 2.87, 3.22, 3.44, 3.54, 3.78, 3.88]),
                source=_GOLDEN,
            ),
            AcceptanceCurve(
                name="kimi-k3-dspark-coding-probabilistic",
                model="moonshotai/Kimi-K3",
                draft="Inferact/Kimi-K3-DSpark",
                draft_sample_method="probabilistic",
                rejection_sample_method="block",
                text="coding",
                lengths=_curve([1.85, 2.51, 3.00, 3.36, 3.62, 3.75, 3.84, 4.00]),
                source=_GOLDEN,
            ),
            # Two sources that disagree: the golden curve says 3.78 for coding with 7 drafts, the launch post 4.73.
            AcceptanceCurve(
                name="kimi-k3-dspark-launch-coding",
                model="moonshotai/Kimi-K3",
                draft="Inferact/Kimi-K3-DSpark",
                draft_sample_method="probabilistic",
                rejection_sample_method="block",
                text="coding and other low-entropy tasks",
                lengths=MappingProxyType({7: 4.73}),
                source=_LAUNCH,
            ),
            AcceptanceCurve(
                name="kimi-k3-dspark-launch-creative",
                model="moonshotai/Kimi-K3",
                draft="Inferact/Kimi-K3-DSpark",
                draft_sample_method="probabilistic",
                rejection_sample_method="block",
                text="creative writing",
                lengths=MappingProxyType({7: 2.61}),
                source=_LAUNCH,
            ),
        )
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Where acceptance comes from in a workload: `real`, or synthetic by one curve or at one fixed length.

    A different source makes another question of the number, so it is part of what must be equal to compare.
    """

    curve: str | None = None
    fixed_length: float | None = None

    def __post_init__(self) -> None:
        if self.curve is not None and self.fixed_length is not None:
            raise AcceptanceError("acceptance.synthetic takes a curve or a fixed length, not both")
        if self.curve is not None and self.curve not in CURVES:
            raise AcceptanceError(
                f"acceptance.synthetic.curve: no curve is named {self.curve!r}; there are {', '.join(CURVES)}"
            )
        if self.fixed_length is not None and not 1 <= self.fixed_length <= 64:
            raise AcceptanceError("acceptance.synthetic.length must be at least 1")

    @property
    def synthetic(self) -> bool:
        return self.curve is not None or self.fixed_length is not None

    @property
    def source(self) -> str:
        """The text that must be equal for two measurements to be comparable."""
        if self.curve is not None:
            return f"synthetic curve {self.curve}"
        if self.fixed_length is not None:
            return f"synthetic length {self.fixed_length:g}"
        return "real"

    def length(self, num_speculative_tokens: int) -> float | None:
        """Asked-for tokens per step; None where the text decides. 1.0 without drafts."""
        if num_speculative_tokens == 0:
            return 1.0
        if self.curve is not None:
            return CURVES[self.curve].length(num_speculative_tokens)
        return self.fixed_length


REAL = Acceptance()

# An H200 reported lengths within 1.5 % of those asked for (vLLM 0.25.1, DSpark, 3 to 7 drafts, 2026-12-01).
REPORTED_WITHIN = 0.05


def mismatch(asked: float | None, reported: float | None) -> str:
    """Why a synthetic run did not accept what it was asked to; empty where it did, or where nothing was asked.

    asked, reported: tokens per step.
    """
    if asked is None or asked == 1.0:
        return ""
    if reported is None:
        return f"the engine reported no acceptance although {asked:.2f} tokens a step were asked for"
    if abs(reported / asked - 1) > REPORTED_WITHIN:
        return f"the engine accepted {reported:.2f} tokens a step where {asked:.2f} were asked for"
    return ""
