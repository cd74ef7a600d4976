"""A study's trials without a number, grouped as a reader asks of them: by rule and by kind of failure."""

from api.ui.figures import NoNumber, no_numbers
from search_spaces.rule import Reason
from search_spaces.serving import ServingConfig
from tuner.core.measurement import FailureKind
from tuner.core.trial import Failed, Measured, Outcome, Rejected, Trial


def trial(number: int, outcome: Outcome | None) -> Trial:
    return Trial(
        number=number,
        candidate=ServingConfig(max_num_seqs=number + 1),
        key=str(number),
        gpus=1,
        baseline=number == 0,
        chosen_by="x",
        outcome=outcome,
    )


def rejected(*rules: str) -> Rejected:
    return Rejected(reasons=tuple(Reason(rule=rule, sentence=f"{rule} is broken", source="x") for rule in rules))


def test_reasons_are_counted_by_rule_and_by_kind_and_the_first_trial_speaks_for_its_group() -> None:
    crashed = [Failed(kind=FailureKind.CRASHED, sentence=f"code {n}", evidence="") for n in (1, 2)]
    outcomes: list[Outcome | None] = [
        Measured(measurements=()), crashed[0], rejected("memory", "heads"), rejected("memory"), crashed[1],
        rejected("memory"), None,
    ]  # fmt: skip
    assert no_numbers([trial(number, outcome) for number, outcome in enumerate(outcomes)]) == [
        NoNumber("rejected", "memory", 3, 2, "memory is broken"),
        NoNumber("failed", "crashed", 2, 1, "code 1"),
        NoNumber("rejected", "heads", 1, 2, "heads is broken"),
    ]


def test_a_study_in_which_everything_was_measured_has_no_such_table() -> None:
    assert no_numbers([trial(0, Measured(measurements=())), trial(1, None)]) == []
