"""An evidence card as a page of Markdown for people. The JSON keeps every row; here a check has one. Text only."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.core import task_accuracy


def to_markdown(card: Mapping[str, Any]) -> str:
    """The summary, the starts and their ratios, the output checks, and what is not proved."""
    lines = [f"# {_cell(str(card['status']))}", ""]
    lines += [f"- **{line['label']}**: {_cell(line['text'])}" for line in card["summary"] if line["label"] != "Status"]
    confirmation = card["confirmation"]
    for comparison in (confirmation["decision"] or {}).get("comparisons", []):
        lines += _comparison(comparison)
    lines += _output(confirmation["quality"])
    lines += _accepted(card.get("acceptance_by_position", {}))
    lines += ["", "## Starts", "", "| start | purpose | candidate | held s | ended |", "|---|---|---|---|---|"]
    lines += [
        f"| {start['id']} | {start['purpose']} | {start['candidate_key']} | {start['held_s'] or 0:.1f} "
        f"| {start['ended']}{_cell(' - left out: ' + start['excluded']) if start['excluded'] else ''} |"
        for start in card["starts"]
    ]
    lines += ["", "## Reproduce", ""] + [f"    {line}" for line in card["reproduce"]]
    return "\n".join(lines) + "\n"


def _comparison(comparison: Mapping[str, Any]) -> list[str]:
    ratios = ", ".join(f"{ratio:.4f}" for ratio in comparison["ratios"])
    lines = [
        "",
        f"## {comparison['candidate_key']} against the baseline",
        "",
        "| gain | at least | at most | p | paired start ratios |",
        "|---|---|---|---|---|",
        f"| {comparison['gain']:+.2%} | {comparison['lower']:+.2%} | {_percent(comparison['upper'])} "
        f"| {comparison['p']:.4f} | {ratios} |",
    ]
    lines += [f"- not validated because {_cell(reason)}" for reason in comparison["reasons"]]
    if comparison["limits"]:
        lines += ["", "| limit | margin in the worst start |", "|---|---|"]
        lines += [f"| {_cell(name)} | {value:+.1%} |" for name, value in comparison["limits"].items()]
    return lines


def _output(quality: Sequence[Mapping[str, Any]]) -> list[str]:
    """One table for each candidate, one row for each check, and for each task."""
    lines: list[str] = []
    for key in dict.fromkeys(result["candidate_key"] for result in quality):
        lines += [
            "",
            f"## Output of {key}",
            "",
            "Each check at the graph size or context where its value is worst; the card's JSON has every one of them.",
            "",
            "| check | worst value | limit there | at | of | passed |",
            "|---|---|---|---|---|---|",
        ]
        checks: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for result in quality:
            if result["candidate_key"] == key:
                task = result["at"] if result["name"] == task_accuracy.NAME else ""
                checks.setdefault((result["name"], task), []).append(result)
        lines += [_row(results) for results in checks.values()]
    return lines


def _row(results: Sequence[Mapping[str, Any]]) -> str:
    """Of one check at every place. Worst: a failed one before any that passed, then the largest value."""
    worst = max(results, key=lambda result: (not result["passed"], result["value"]))
    failed = sum(not result["passed"] for result in results)
    count = len(results)
    passed = f"NO, not at {failed} of {count}" if failed else f"yes, at all {count}" if count > 1 else "yes"
    return (
        f"| {worst['name']} | {worst['value']:.4g} {worst['unit']} | {worst['limit']:.4g} | {_cell(worst['at'])} "
        f"| {_cell(worst['detail'])} | {passed} |"
    )


def _accepted(by_candidate: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    if not by_candidate:
        return []
    lines = ["", "## Accepted of the drafts", "", "| candidate | workload | by position |", "|---|---|---|"]
    lines += [
        f"| {key} | {_cell(workload)} | {', '.join(f'{share:.3f}' for share in shares)} |"
        for key, by_workload in by_candidate.items()
        for workload, shares in by_workload.items()
    ]
    return lines


def _cell(text: str) -> str:
    """Text that cannot leave its line, its table cell or become markup."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    for character in "\\`*_[]<>|":
        plain = plain.replace(character, f"\\{character}")
    return plain


def _percent(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:+.2%}"
