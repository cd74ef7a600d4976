"""An exported file says what it is, cannot be broken out of, and lies beside what it needs."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from search_spaces.candidate import candidate_key
from search_spaces.serving import ServingConfig
from tuner.core.confirm import qualifier
from tuner.core.decision import Comparison, Decision, DecisionKind, QualityResult
from tuner.core.export import Format, NothingToExportError, Subject, chosen, not_proved, render
from tuner.core.measurement import Fingerprint, Origin
from tuner.core.study import Study
from tuner.core.study_file import load, parse
from tuner.core.vllm_args import ModelRef, Nodes

EXAMPLE = Path(__file__).parents[3] / "examples" / "kimi_k3_gb300.yaml"
BASELINE = ServingConfig(tensor_parallel_size=16, decode_backend="auto")
WINNER = ServingConfig(tensor_parallel_size=16, decode_backend="latency_specialized", enable_chunked_prefill=False)
VALIDATED = Decision(
    kind=DecisionKind.VALIDATED,
    gpus=16,
    baseline_key=candidate_key(BASELINE),
    winner_key=candidate_key(WINNER),
    sentence="validated: +12.00% over the baseline",
    comparisons=(
        Comparison(candidate_key=candidate_key(WINNER), ratios=(1.1, 1.2), gain=0.12, lower=0.1, upper=0.14, p=0.031),
    ),
    smallest_gain=0.02,
    qualifier="for this synthetic benchmark only (synthetic acceptance)",
)


def subject(decision: Decision = VALIDATED, name: str = "a study", **changes: Any) -> Subject:
    file = parse({**load(EXAMPLE).model_dump(mode="json", exclude_none=True), "name": name})
    study = Study(id="abcd", name=name, file=file, file_key=file.key, created_at=datetime(2026, 12, 1, tzinfo=UTC))
    fields: dict[str, Any] = {
        "study": study,
        "decision": decision,
        "candidate": WINNER,
        "baseline": BASELINE,
        "origin": Origin.MEASURED,
        "model": ModelRef(model="moonshotai/Kimi-K3", extra={"enable-prefix-caching": False}),
        "nodes": Nodes(gpu="GB300", gpus_per_node=4),
        "fingerprint": Fingerprint(engine="vllm", versions={"vllm": "0.33.0"}, gpu="GB300", gpus=16),
        "environment": {"NCCL_DEBUG": "WARN", "ODD": "it's; rm -rf /"},
        "other_gpus": (8,),
        **changes,
    }
    return Subject(**fields)


def test_a_validated_file_carries_its_gain_interval_versions_and_what_is_not_proved() -> None:
    text = render(subject(), Format.VLLM).texts["a-study-16gpu.yaml"]
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert comments[0] == "# Status: Validated, for this synthetic benchmark only (synthetic acceptance)"
    for part in (
        "+12.00% over the baseline, interval +10.00% to +14.00%, p = 0.0310, 2 paired fresh starts",
        "vllm 0.33.0",
        "# Not proved: prefill is excluded from the objective",
        "# Not proved: acceptance is synthetic curve kimi-k3-dspark-coding",
        "decided separately, never compared in percent: 8",
        "decode_backend: 'auto' -> 'latency_specialized'",
    ):
        assert part in "\n".join(comments)


def test_flags_set_to_false_are_written_in_the_form_that_vllm_reads() -> None:
    options = yaml.safe_load(render(subject(), Format.VLLM).texts["a-study-16gpu.yaml"])
    assert options["no-enable-chunked-prefill"] is True
    assert options["no-enable-prefix-caching"] is True
    assert False not in options.values()


def test_a_baseline_is_headed_no_validated_improvement() -> None:
    nothing = Decision(
        kind=DecisionKind.NO_VALIDATED_IMPROVEMENT,
        gpus=16,
        baseline_key=candidate_key(BASELINE),
        winner_key=None,
        sentence="no validated improvement",
    )
    assert chosen(nothing, allow_unvalidated=False) == candidate_key(BASELINE)
    text = render(subject(nothing, candidate=BASELINE), Format.VLLM).texts["a-study-16gpu.yaml"]
    assert text.startswith("# Status: No validated improvement: this is the baseline\n")
    assert "Differs from baseline: in nothing" in text


def test_the_sizes_of_the_graphs_are_among_what_differs_from_the_baseline() -> None:
    other = replace(WINNER, max_num_seqs=32, cudagraph_capture_sizes=(8, 16, 256))
    text = render(subject(candidate=other), Format.VLLM).texts["a-study-16gpu.yaml"]
    line = next(line for line in text.splitlines() if line.startswith("# Differs from baseline: "))
    assert "max_num_seqs: None -> 32" in line
    assert "cudagraph_capture_sizes: None -> " in line
    assert "8,16,256" in line.replace(" ", "")


def with_output(empty: float = 0.0, engine: dict[str, Any] | None = None) -> Subject:
    """The baseline's share of empty outputs is the limit of that check."""
    check = QualityResult(
        name="empty_outputs", candidate_key=candidate_key(WINNER), value=empty, limit=empty, unit="share", passed=True
    )
    plain = subject(replace(VALIDATED, quality=(check,)))
    document = plain.study.file.model_dump(mode="json", exclude_none=True)
    file = parse({**document, "engine": {**document["engine"], **(engine or {})}})
    return replace(plain, study=replace(plain.study, file=file))


RUNS_ONLY = "the output check shows only that the decode path runs, not that its outputs are right"


@pytest.mark.parametrize(
    "engine",
    [
        {"options": {"load-format": "dummy"}},
        {"options": {"load_format": "dummy"}},
        {"arguments": ["--load-format=dummy"]},
        {"arguments": ["--load-format", "dummy"]},
    ],
)
def test_with_dummy_weights_the_output_check_is_said_to_show_only_that_the_path_runs(engine: dict[str, Any]) -> None:
    dummy = with_output(engine=engine)
    assert any(RUNS_ONLY in text for text in not_proved(dummy))
    assert qualifier(dummy.study.file).endswith("dummy weights)")
    yaml_text = render(dummy, Format.VLLM).texts["a-study-16gpu.yaml"]
    assert f"# Not proved: the weights are dummies, so the outputs mean nothing: {RUNS_ONLY}" in yaml_text


def test_a_baseline_that_hardly_says_anything_is_named_beside_the_output_check() -> None:
    assert any("up to 75% of the baseline's own outputs were empty" in text for text in not_proved(with_output(0.75)))
    assert not any("output check" in text for text in not_proved(with_output(0.25)))
    assert not any("output check" in text for text in not_proved(subject())), "nothing was checked, so nothing is said"


@pytest.mark.parametrize("kind", [DecisionKind.NOT_MEASURED, DecisionKind.INFEASIBLE])
def test_what_is_not_confirmed_needs_to_be_asked_for(kind: DecisionKind) -> None:
    decision = Decision(kind=kind, gpus=16, baseline_key="b", winner_key="w", sentence="because")
    with pytest.raises(NothingToExportError, match=f"{kind}: because"):
        chosen(decision, allow_unvalidated=False)
    assert chosen(decision, allow_unvalidated=True) == "w"


def test_several_trays_get_a_line_each_and_the_recipes_variables() -> None:
    files = render(subject(), Format.VLLM).texts
    launch = files["a-study-16gpu.launch.sh"]
    assert [line.split("--node-rank ")[1][0] for line in launch.splitlines() if "--node-rank" in line] == list("0123")
    assert launch.count("--headless") == 3
    assert '"$NODE0"' in launch or "$NODE0" in launch
    environment = files["a-study-16gpu.env"]
    assert "NCCL_MNNVL_ENABLE=1" in environment
    assert "ODD='it'\"'\"'s; rm -rf /'" in environment


@pytest.mark.parametrize(
    "name", ["x\u2028model: evil", "x\u0085tensor-parallel-size: 1", "\u202etxet", "#:{}[]'\"", "../../etc/passwd"]
)
def test_no_name_breaks_out_of_its_comment_or_its_folder(name: str) -> None:
    plain = yaml.safe_load(render(subject(), Format.VLLM).texts["a-study-16gpu.yaml"])
    files = render(subject(name=name), Format.VLLM).texts
    main = next(iter(files))
    assert yaml.safe_load(files[main]) == plain
    assert all("/" not in file and not file.startswith(".") for file in files)


def test_a_name_of_the_callers_is_used_throughout() -> None:
    files = render(subject(), Format.VLLM, "best").texts
    assert list(files) == ["best.yaml", "best.env", "best.launch.sh"]
    assert "--config best.yaml" in files["best.launch.sh"]


def test_json_is_strict_and_holds_options_environment_and_evidence() -> None:
    document = json.loads(render(subject(), Format.JSON).texts["a-study-16gpu.json"])
    assert document["options"]["tensor-parallel-size"] == 16
    assert document["environment"]["NCCL_DEBUG"] == "WARN"
    assert len(document["launch"]) == 4
    assert document["decision"]["comparisons"][0]["gain"] == 0.12


def test_the_command_line_is_one_that_a_shell_takes() -> None:
    text = render(subject(), Format.CLI).texts["a-study-16gpu.sh"]
    import shlex

    command = shlex.split(text.splitlines()[-1])
    assert command[:4] == ["exec", "vllm", "serve", "moonshotai/Kimi-K3"]
    assert json.loads(command[command.index("--additional-config") + 1]) == {"decode_backend": "latency_specialized"}
