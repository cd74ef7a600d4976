"""A decision as files that a person deploys: vLLM YAML, command line or JSON, each with its environment and evidence.

Text only; the caller writes it. The engine that measured the candidate was started from the same renderer.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from search_spaces.candidate import Candidate, difference
from search_spaces.serving import ServingConfig
from tuner.core import quality, task_accuracy, vllm_args
from tuner.core.decision import Decision, DecisionKind
from tuner.core.measurement import Fingerprint, Origin
from tuner.core.study import Study
from tuner.core.study_file import StudyFile
from tuner.core.workload import ServingWorkload


class Format(StrEnum):
    VLLM = "vllm"
    CLI = "cli"
    JSON = "json"


class NothingToExportError(RuntimeError):
    """Nothing measured and confirmed; the message says what there is instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is exported and what is known of it.

    candidate: the validated winner, the baseline where nothing was validated, or an unvalidated best on request.
    other_gpus: GPU counts that the study decided separately.   environment: variables that it was measured under.
    """

    study: Study
    decision: Decision
    candidate: Candidate
    baseline: Candidate
    origin: Origin
    model: vllm_args.ModelRef
    nodes: vllm_args.Nodes
    fingerprint: Fingerprint | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    other_gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Files:
    """name: file name to text; the first is the one asked for, the others lie beside it."""

    texts: Mapping[str, str]

    @property
    def main(self) -> str:
        return next(iter(self.texts))


def chosen(decision: Decision, *, allow_unvalidated: bool) -> str:
    """The key of the candidate to export.

    Raises:
        NothingToExportError: the decision is neither a validation nor a measured "no validated improvement", and the
            caller did not ask for an unvalidated configuration, or there is none.
    """
    if decision.kind is DecisionKind.VALIDATED and decision.winner_key is not None:
        return decision.winner_key
    if decision.kind is DecisionKind.NO_VALIDATED_IMPROVEMENT:
        return decision.baseline_key
    if allow_unvalidated and decision.winner_key is not None:
        return decision.winner_key
    raise NothingToExportError(f"{decision.kind}: {decision.sentence}")


def heading(subject: Subject) -> str:
    return heading_of(subject.decision, subject.origin)


def heading_of(decision: Decision, origin: Origin) -> str:
    """One line that cannot be misread."""
    if decision.kind is DecisionKind.VALIDATED:
        return "Validated" + (f", {decision.qualifier}" if decision.qualifier else "")
    if decision.kind is DecisionKind.NO_VALIDATED_IMPROVEMENT:
        return "No validated improvement: this is the baseline"
    return f"NOT VALIDATED ({decision.kind}, {origin}): do not deploy on this evidence alone"


def evidence(subject: Subject) -> list[tuple[str, str]]:
    """Label and text, in the order in which a reader needs them."""
    study, decision = subject.study, subject.decision
    lines = [
        ("Status", heading(subject)),
        ("Decision", decision.sentence),
        ("Study", f"{study.name} ({study.id})"),
        ("Origin", _ORIGIN[subject.origin]),
        ("Hardware", f"{decision.gpus} x {study.file.hardware.gpu}, {subject.nodes.gpus_per_node} GPUs a node"),
        ("Workload", _workloads(study)),
        ("Objective", f"{'maximize' if study.file.objective.maximize else 'minimize'} {study.file.objective.metric}"),
    ]
    lines += [("Limit", f"{limit.metric} {_bound(limit.at_most, limit.at_least)}") for limit in study.file.limits]
    for comparison in decision.comparisons:
        if comparison.candidate_key == decision.winner_key:
            lines.append(
                (
                    "Gain",
                    f"{comparison.gain:+.2%} over the baseline, interval {comparison.lower:+.2%} to "
                    f"{comparison.upper:+.2%}, p = {comparison.p:.4f}, {len(comparison.ratios)} paired fresh starts",
                )
            )
    lines += [
        ("Task accuracy", f"{result.at}: {result.detail}")
        for result in decision.quality
        if result.name == task_accuracy.NAME and result.candidate_key == decision.winner_key
    ]
    if decision.estimate is not None and decision.kind is not DecisionKind.VALIDATED:
        lines.append(("Estimate", f"{decision.estimate:+.2%} in the search; not a proof"))
    if decision.smallest_gain is not None:
        lines.append(("Smallest gain", f"{decision.smallest_gain:.2%} is the least that these starts could show"))
    if subject.fingerprint is not None:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(subject.fingerprint.versions.items()))
        lines.append(("Versions", versions or "unknown"))
    changed = difference(subject.candidate, subject.baseline)
    lines.append(
        ("Differs from baseline", "; ".join(f"{n}: {b!r} -> {a!r}" for n, (a, b) in changed.items()) or "in nothing")
    )
    lines += [("Not proved", text) for text in not_proved(subject)]
    if subject.other_gpus:
        counts = ", ".join(map(str, subject.other_gpus))
        lines.append(("Other GPU counts", f"decided separately, never compared in percent: {counts}"))
    return lines


def not_proved(subject: Subject) -> list[str]:
    """What a reader might take for shown and is not."""
    study = subject.study
    found = []
    if subject.origin is Origin.PREDICTED:
        found.append("every number is predicted by a model; nothing was run")
    if subject.origin is Origin.RECORDED:
        found.append("every number was replayed from a recording; nothing was run")
    serving = [w for w in study.file.workloads if isinstance(w, ServingWorkload)]
    sources = sorted({w.acceptance.source for w in serving if w.acceptance.synthetic})
    found += [f"acceptance is {source}: your own text decides how many drafts are accepted" for source in sources]
    if any(w.synthetic_kv for w in serving):
        found.append(
            "the KV cache was filled with made-up values (DecodeBenchConnector): no prompt was computed, and no output "
            "of those runs means anything; output was checked with a real cache"
        )
    if study.file.objective.metric.startswith("decode_"):
        found.append("prefill is excluded from the objective")
    if subject.decision.kind is DecisionKind.VALIDATED and not study.file.quality.enabled:
        found.append("output quality was not checked")
    found += _what_the_output_check_does_not_show(study.file, subject.decision)
    found.append("another GPU count, context, concurrency or text is another question")
    return found


def _what_the_output_check_does_not_show(file: StudyFile, decision: Decision) -> list[str]:
    """Of a model that says nothing, nothing can be found to be wrong."""
    if not decision.quality:
        return []
    if file.engine.dummy_weights:
        return [
            "the weights are dummies, so the outputs mean nothing: the output check shows only that the decode path "
            "runs, not that its outputs are right"
        ]
    empty = max((result.limit for result in decision.quality if result.name == quality.EMPTY), default=0.0)
    if empty < quality.MOSTLY_EMPTY:
        return []
    return [
        f"up to {empty:.0%} of the baseline's own outputs were empty, so the output check shows little more than that "
        f"the decode path runs, not that its outputs are right"
    ]


def render(subject: Subject, format: Format, name: str = "") -> Files:
    """name: of the files, without an ending; the study's and its GPU count where it is empty.

    Raises:
        RenderError: vLLM could not read an option back.
        NothingToExportError: the candidate is no serving configuration.
    """
    candidate = subject.candidate
    if not isinstance(candidate, ServingConfig):
        raise NothingToExportError(f"a {candidate.kind} candidate has no vLLM configuration; export it as a table")
    name = name or file_name(subject)
    options = vllm_args.engine_options(candidate, subject.model)
    tables = subject.study.file.engine.kernel_tables
    variables = {**subject.environment, **vllm_args.environment(candidate, subject.nodes, kernel_tables=tables)}
    beside = {f"{name}.env": _environment_file(subject, variables)}
    if subject.nodes.count(candidate) > 1:
        beside[f"{name}.launch.sh"] = _launch_file(subject, candidate, f"{name}.yaml")
    if format is Format.VLLM:
        return Files({f"{name}.yaml": _header(subject, name) + vllm_args.to_yaml(options), **beside})
    if format is Format.CLI:
        line = shlex.join(["vllm", "serve", *vllm_args.to_cli(options)])
        return Files(
            {
                f"{name}.sh": f'#!/bin/sh\n{_header(subject, name)}exec {line} "$@"\n',
                f"{name}.env": beside[f"{name}.env"],
            }
        )
    return Files({f"{name}.json": _json(subject, candidate, options, variables, name)})


def file_name(subject: Subject) -> str:
    return f"{plain_name(subject.study.name)}-{subject.decision.gpus}gpu"


def plain_name(name: str) -> str:
    """A study's name in letters that every file system takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "study"


_ORIGIN = {
    Origin.PREDICTED: "predicted: nothing was run",
    Origin.RECORDED: "recorded: replayed from a file of measurements",
    Origin.MEASURED: "measured on the hardware named here",
}


def _bound(at_most: float | None, at_least: float | None) -> str:
    return f"at most {at_most:g}" if at_most is not None else f"at least {at_least:g}"


def _workloads(study: Study) -> str:
    serving = [w for w in study.file.workloads if isinstance(w, ServingWorkload)]
    if not serving:
        return ", ".join(workload.key for workload in study.file.workloads)
    first = serving[0]
    acceptance = f"acceptance {first.acceptance.source}"
    most = f"{first.input_tokens} tokens in, {first.output_tokens} out"
    if first.dataset.is_trace:
        times = f"{first.requests} requests at their recorded times, at most {first.concurrency} sessions at once"
        return f"{first.dataset}: {times}, up to {most}, {acceptance}"
    contexts = ", ".join(map(str, dict.fromkeys(w.context_tokens for w in serving)))
    levels = ", ".join(map(str, dict.fromkeys(w.concurrency for w in serving)))
    made_up = "synthetic KV cache, " if first.synthetic_kv else ""
    if not first.dataset.is_random:
        return f"{first.dataset}: up to {most}, concurrency {levels}, {acceptance}"
    return f"{most}, context {contexts}, concurrency {levels}, {first.dataset}, {made_up}{acceptance}"


def _comment(text: str) -> str:
    """One comment line: control characters and line ends of other alphabets cannot break out of it."""
    return "".join(character if character.isprintable() else " " for character in text)


def _header(subject: Subject, name: str) -> str:
    lines = [f"# {_comment(f'{label}: {text}')}" for label, text in evidence(subject)]
    several = isinstance(subject.candidate, ServingConfig) and subject.nodes.count(subject.candidate) > 1
    start = f"one line for each node, in {name}.launch.sh" if several else f"vllm serve --config {name}.yaml"
    lines.append(f"# Environment: the variables in {name}.env (set -a; . ./{name}.env; set +a)")
    lines.append(f"# Start: {start}")
    return "\n".join(lines) + "\n"


def _environment_file(subject: Subject, variables: Mapping[str, str]) -> str:
    lines = [f"# {_comment(heading(subject))}", f"# {_comment(f'Study {subject.study.name} ({subject.study.id})')}"]
    lines += [f"{name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
    return "\n".join(lines) + "\n"


def _launch_file(subject: Subject, candidate: ServingConfig, yaml_name: str) -> str:
    lines: Sequence[str] = vllm_args.launch_lines(candidate, subject.nodes, config_file=yaml_name, master_addr="$NODE0")
    text = [f"# {_comment(heading(subject))}", "# One line for each node; NODE0 is the address of the first."]
    for rank, line in enumerate(lines):
        text += [f"# node {rank}", line.replace("'$NODE0'", '"$NODE0"')]
    return "\n".join(text) + "\n"


def _json(
    subject: Subject,
    candidate: ServingConfig,
    options: Mapping[str, object],
    variables: Mapping[str, str],
    name: str,
) -> str:
    launch = vllm_args.launch_lines(candidate, subject.nodes, config_file=f"{name}.yaml")
    document = {
        "study": {"id": subject.study.id, "name": subject.study.name},
        "status": heading(subject),
        "origin": subject.origin,
        "gpus": subject.decision.gpus,
        "decision": asdict(subject.decision),
        "options": options,
        "environment": variables,
        "launch": launch,
        "evidence": [{"label": label, "text": text} for label, text in evidence(subject)],
        "not_proved": not_proved(subject),
        "versions": dict(subject.fingerprint.versions) if subject.fingerprint is not None else {},
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
