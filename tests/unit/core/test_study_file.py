"""What a study file may say, and the sentence that a user reads where it is wrong."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tuner.core.confirm import qualifier
from tuner.core.plan import plan, refuse_hopeless
from tuner.core.study_file import StudyFile, StudyFileError, load, parse
from tuner.core.workload import ServingWorkload

EXAMPLE = Path(__file__).parents[3] / "examples" / "kimi_k3_gb300.yaml"


def document(**changes: Any) -> dict[str, Any]:
    found = yaml.safe_load(EXAMPLE.read_text())
    assert isinstance(found, dict)
    return {**found, **changes}


@pytest.mark.parametrize("path", sorted(EXAMPLE.parent.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_can_be_planned(path: Path) -> None:
    assert all(plan(part).feasible > 0 for part in load(path).parts)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"objectiv": {}}, "objectiv: unknown key; did you mean 'objective'?"),
        ({"quality": {"tasks": ["gsm8k"], "enabled": False}}, "quality: tasks: they are part of the check"),
        ({"quality": {"margin": 0}}, "quality.margin: Input should be greater than 0"),
        ({"budget": {"trails": 3}}, "budget.trails: unknown key; did you mean 'trials'?"),
        ({"budget": {"trials": 0}}, "budget.trials: Input should be greater than 0"),
        ({"workload": {"input_tokens": 1}}, "workload.output_tokens: Field required"),
        ({"objective": {}}, "objective: takes exactly one of maximize and minimize"),
        ({"limits": [{"metric": "ttft_p99_ms"}]}, "limits.0: takes exactly one of at_most and at_least"),
        ({"confirm": {"finalists": 3, "starts": 5}}, "confirm: starts: 3 finalists need at least 6 starts a side"),
        ({"confirm": {"starts": 4}}, "confirm.starts: Input should be greater than or equal to 5"),
        ({"name": "two\nlines"}, "name: must be one line of printable text"),
        ({"name": "x" * 201}, "name: String should have at most 200 characters"),
        ({"workload": None}, "takes exactly one of workload and problems"),
        ({"evaluator": "guess"}, "evaluator: Input should be 'predicted', 'recorded', 'vllm' or 'kernel'"),
    ],
)
def test_a_wrong_key_is_named_with_its_reason(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StudyFileError) as raised:
        parse(document(**changes))
    assert sentence in str(raised.value)


def test_an_unknown_curve_is_refused_with_the_known_ones() -> None:
    workload = {**document()["workload"], "acceptance": {"synthetic": {"curve": "wishful"}}}
    with pytest.raises(StudyFileError, match=r"no curve is named 'wishful'; there are kimi-k3-dspark-coding"):
        parse(document(workload=workload))


TINY = Path(__file__).parents[3] / "examples" / "tiny_cpu.yaml"


def with_workload(folder: Path, workload: dict[str, Any], **changes: Any) -> Path:
    """A study file in a folder, as a user has it; its workload is given, the rest is an example's."""
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(TINY.read_text()), **changes, "workload": workload}))
    return path


LENGTHS = {"input_tokens": 64, "output_tokens": 32}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "output_tokens": 9}\n')
    (tmp_path / "data" / "trace.jsonl").write_text(
        '{"session": "a", "timestamp_s": 10, "input_tokens": 30, "output_tokens": 7}\n'
        '{"session": "b", "timestamp_s": 11, "input_tokens": 10, "output_tokens": 9}\n'
        '{"session": "a", "timestamp_s": 14, "input_tokens": 40, "output_tokens": 5, "shared_prefix_tokens": 37}\n'
    )
    return tmp_path


def test_a_data_set_is_found_beside_the_study_file_and_its_hash_is_its_identity(files: Path) -> None:
    here = load(with_workload(files, {**LENGTHS, "requests": 2, "dataset": "data/prompts.jsonl"}))
    (workload,) = here.workloads
    assert isinstance(workload, ServingWorkload)
    assert workload.dataset.path == str(files / "data" / "prompts.jsonl")
    assert len(workload.dataset.sha256) == 64
    assert parse(here.model_dump(mode="json")) == here

    elsewhere = files / "elsewhere"
    shutil.copytree(files / "data", elsewhere / "data")
    there = load(with_workload(elsewhere, {**LENGTHS, "requests": 2, "dataset": {"prompts": "data/prompts.jsonl"}}))
    assert there.key == here.key
    assert there.workloads == here.workloads

    (elsewhere / "data" / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "c"}\n')
    changed = load(with_workload(elsewhere, {**LENGTHS, "requests": 2, "dataset": "data/prompts.jsonl"}))
    assert changed.key != here.key
    assert changed.workloads != here.workloads


def test_a_trace_brings_its_own_lengths_times_and_sessions(files: Path) -> None:
    asked = load(with_workload(files, {"dataset": {"trace": "data/trace.jsonl"}, "repeats": 2}))
    (workload,) = asked.workloads
    assert isinstance(workload, ServingWorkload)
    assert (workload.input_tokens, workload.output_tokens, workload.context_tokens) == (40, 9, 40)
    assert (workload.concurrency, workload.requests, workload.quiet_s, asked.repeats) == (2, 3, 4.0, 2)
    assert workload.key == f"trace-{workload.dataset.sha256[:8]}"
    assert plan(asked).feasible > 0
    assert parse(asked.model_dump(mode="json")) == asked


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        ({**LENGTHS, "dataset": "nowhere.jsonl"}, "nowhere.jsonl: no such file"),
        ({**LENGTHS, "dataset": "data/trace.jsonl"}, "trace.jsonl, line 1: prompt is missing"),
        ({"dataset": {"trace": "data/prompts.jsonl"}}, "prompts.jsonl, line 1: input_tokens is missing"),
        ({**LENGTHS, "dataset": {"trace": "data/trace.jsonl"}}, "workload.input_tokens: unknown key"),
        ({"dataset": {"trace": "data/trace.jsonl"}, "request_rat": 1}, "workload.request_rat: unknown key"),
        ({**LENGTHS, "dataset": {"promts": "a"}}, "workload.dataset.promts: unknown key; did you mean 'prompts'?"),
        ({**LENGTHS, "dataset": {}}, "workload.dataset: is `random`, or takes exactly one of prompts, sharegpt"),
        ({**LENGTHS, "dataset": {"prompts": "a", "sharegpt": "b"}}, "workload.dataset: is `random`, or takes exactly"),
        ({**LENGTHS, "context_tokens": [1], "dataset": "data/prompts.jsonl"}, "workload: context_tokens: prompts from"),
        ({**LENGTHS, "synthetic_kv": True, "dataset": "data/prompts.jsonl"}, "workload: synthetic_kv: a made-up cache"),
        (
            {**LENGTHS, "output_tokens": 8, "requests": 2, "dataset": "data/prompts.jsonl"},
            "workload: output_tokens: 8, but a line of the file asks for 9",
        ),
        (
            {**LENGTHS, "requests": 3, "dataset": "data/prompts.jsonl"},
            "workload: requests: 3 are to be sent in a run, and the file holds 2",
        ),
        (
            {**LENGTHS, "dataset": {"prompts": "data/prompts.jsonl", "sha256": "0" * 64}},
            "its sha256 is",
        ),
    ],
)
def test_a_data_set_that_does_not_fit_is_refused_with_a_sentence(
    files: Path, workload: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(StudyFileError) as raised:
        load(with_workload(files, workload))
    assert sentence in str(raised.value)


def test_what_only_an_engine_can_do_is_not_predicted() -> None:
    workload = {**document()["workload"], "synthetic_kv": True}
    with pytest.raises(StudyFileError, match="workload: the model predicts random tokens"):
        parse(document(workload=workload))


def test_a_metric_by_session_needs_a_trace(files: Path) -> None:
    objective = {"maximize": "session_tokens_per_s_p50"}
    with pytest.raises(StudyFileError, match="session_tokens_per_s_p50 needs sessions, and only a trace has them"):
        load(with_workload(files, LENGTHS, objective=objective))
    trace = with_workload(files, {"dataset": {"trace": "data/trace.jsonl"}}, objective=objective)
    assert load(trace).objective.metric == "session_tokens_per_s_p50"


def test_a_made_up_cache_is_named_wherever_the_workload_is() -> None:
    workload = {"input_tokens": 1, "output_tokens": 8, "context_tokens": [64, 8192], "synthetic_kv": True}
    found = parse({**yaml.safe_load(TINY.read_text()), "workload": workload})
    assert [one.key for one in found.workloads] == ["c1-ctx64-synthetic-kv", "c1-ctx8192-synthetic-kv"]
    assert qualifier(found) == "for this synthetic benchmark only (synthetic KV cache)"


@pytest.mark.parametrize("name", ["a/b", 'it\'s "quoted"', "<script>alert(1)</script>", "漢" * 200, "   x"])
def test_names_of_any_alphabet_are_taken(name: str) -> None:
    assert parse(document(name=name)).name == name


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "a: [", "\x00", "{a: 1, a"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(StudyFileError):
        load(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyFileError, match=r"nowhere\.yaml: No such file"):
        load(tmp_path / "nowhere.yaml")


def test_the_key_is_of_what_is_asked_not_of_how_it_is_written() -> None:
    plain = parse(document())
    assert parse(dict(reversed(document().items()))).key == plain.key
    assert parse(document(seed=1)).key != plain.key


def test_lists_of_context_and_concurrency_make_one_workload_each() -> None:
    workload = {**document()["workload"], "concurrency": [1, 4]}
    found = [w.key for w in parse(document(workload=workload)).workloads]
    assert found == ["c1-ctx1", "c4-ctx1", "c1-ctx8192", "c4-ctx8192", "c1-ctx65536", "c4-ctx65536"]


def test_a_study_file_survives_the_database_form() -> None:
    file = parse(document())
    assert StudyFile.model_validate(file.model_dump(mode="json")) == file


def test_a_rule_that_leaves_nothing_names_what_rejected_most() -> None:
    with pytest.raises(StudyFileError, match=r"no feasible point is left of .* by user: max_num_seqs > 1000"):
        plan(parse(document(rules=["max_num_seqs > 1000"])))


def test_a_budget_that_cannot_reach_its_confirmation_is_refused() -> None:
    file = parse(document(budget={"trials": 60, "gpu_hours": 10}))
    with pytest.raises(StudyFileError, match=r"budget\.gpu_hours: 10 cannot reach the confirmation"):
        refuse_hopeless(file, plan(file).cost)


def test_pinning_the_gpu_count_leaves_one_contest() -> None:
    found = plan(parse(document(fix={"tensor_parallel_size": 16})))
    assert [contest.gpus for contest in found.contests] == [16]
    assert found.contests[0].trials == 60


def test_a_baseline_of_the_users_own_is_used_and_checked() -> None:
    found = plan(parse(document(baseline={"num_speculative_tokens": 3})))
    assert {c.baseline.values()["num_speculative_tokens"] for c in found.contests} == {3}
    with pytest.raises(StudyFileError, match=r"baseline: 'nonsense' is not an option"):
        plan(parse(document(baseline={"nonsense": 3})))


def test_one_fixed_acceptance_length_cannot_rank_draft_lengths() -> None:
    workload = {**document()["workload"], "acceptance": {"synthetic": {"length": 6}}}
    with pytest.raises(StudyFileError, match=r"workload\.acceptance: draft lengths 0, 3, .* cannot rank"):
        plan(parse(document(workload=workload)))
    fixed = {"num_speculative_tokens": 7, "draft_sampling": "greedy/standard"}
    assert plan(parse(document(workload=workload, fix=fixed))).feasible > 0


def drafting(gpu: str, evaluator: str, acceptance: Any, drafts: list[int]) -> StudyFile:
    return parse(
        document(
            hardware={"gpu": gpu},
            evaluator=evaluator,
            space="tiny_cpu",
            only={"num_speculative_tokens": drafts},
            workload={"input_tokens": 8, "output_tokens": 8, "acceptance": acceptance},
        )
    )


SYNTHETIC = {"synthetic": {"curve": "kimi-k3-dspark-coding"}}


def test_synthetic_acceptance_is_refused_on_a_cpu_which_vllm_has_no_sampler_for() -> None:
    with pytest.raises(StudyFileError, match=r"workload.acceptance: vLLM's CPU engine dies .* use real text"):
        plan(drafting("cpu", "vllm", SYNTHETIC, [0, 4]))
    assert plan(drafting("cpu", "vllm", "real", [0, 4])).feasible
    assert plan(drafting("cpu", "vllm", SYNTHETIC, [0])).feasible, "without drafts nothing is feigned"
    assert plan(drafting("H200", "vllm", SYNTHETIC, [0, 4])).feasible


def test_a_key_leaves_out_what_stands_at_its_default() -> None:
    """So a file keeps its key when a later version learns a new one, and its unfinished study is found."""
    bare = parse(document())
    assert parse(document(parallel=1, quality={"enabled": True})).key == bare.key
    assert parse(document(parallel=2)).key != bare.key


def test_a_named_candidate_takes_its_draft_from_the_engines_drafts_and_its_own_goes_first() -> None:
    """Without a draft vLLM ends at start: four starts of an H200 went that way."""
    drafting = {"max_num_seqs": 16, "num_speculative_tokens": 3, "speculative_method": "dspark"}
    named = [drafting, {**drafting, "speculative_model": "other"}]
    tiny = {key: value for key, value in yaml.safe_load(TINY.read_text()).items() if key not in ("fix", "rules")}
    space = {"knobs": {"max_num_seqs": [16]}}
    file = parse({**tiny, "space": space, "candidates": named, "engine": {"draft_models": {"dspark": "drafts/one"}}})
    (contest,) = plan(file).contests
    assert {candidate.values()["speculative_model"] for candidate in contest.candidates} == {"drafts/one", "other"}
