"""What a study of draft lengths on one H200 found, from its database: each start with its reason, and the decision.

tuner run examples/dense_h200_dspark_confirm.yaml --db sqlite:///h200.db -o export      # on the GPU
python -m benchmarks.h200_dspark h200.db STUDY                                          # anywhere
"""

import argparse
from dataclasses import asdict
from typing import Any

from benchmarks.writing import Goal, write
from tuner.app.reading import resolve, study_document, wall_time
from tuner.app.wiring import connected
from tuner.core.decision import DecisionKind

SHOWN = ("decode_tokens_per_s_per_user", "decode_tokens_per_s", "tpot_mean_ms", "ttft_p99_ms", "mean_running_requests")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database")
    parser.add_argument("study")
    arguments = parser.parse_args()
    with connected(f"sqlite:///{arguments.database}") as studies:
        study_id = resolve(studies, arguments.study)
        document = study_document(studies, study_id, trials=True)
        starts = studies.starts(study_id)
        confirmation = studies.confirmations(study_id)[0]
        spent = wall_time(studies, studies.get(study_id))
    decision = confirmation.decision
    assert decision is not None
    fingerprint = starts[0].fingerprint
    share = spent["traffic"] / spent["held"]
    results: dict[str, Any] = {
        "gpu": fingerprint.gpu,
        "driver": fingerprint.driver,
        "study": "examples/dense_h200_dspark_confirm.yaml",
        "decision": document["decision"],
        "sentence": decision.sentence,
        "comparisons": [asdict(comparison) for comparison in decision.comparisons],
        "trials": [_trial(trial) for trial in document["trials"]],
        "starts": [
            {"why": s.purpose, "place": s.slot, "ready_s": s.ready_s, "held_s": s.held_s, "ended": s.ended}
            for s in starts
        ],
        "gpu_seconds": {**spent, "traffic_share": round(share, 3)},
    }
    goals = [
        Goal("winner confirmed", "validated for this synthetic benchmark only", decision.comparisons[0].gain,
             decision.kind is DecisionKind.VALIDATED),
        Goal("starts without a measurement", "0", float(sum(s.ready_s is None for s in starts)),
             all(s.ready_s is not None for s in starts)),
    ]  # fmt: skip
    write("h200_dspark_confirmed", seconds=spent["held"], versions=fingerprint.versions, results=results, goals=goals)


def _trial(trial: dict[str, Any]) -> dict[str, Any]:
    metrics = {key: {name: m[name] for name in SHOWN if name in m} for key, m in trial.get("metrics", {}).items()}
    config = {
        name: trial["config"].get(name, 0)
        for name in ("num_speculative_tokens", "max_num_seqs", "cudagraph_capture_sizes")
    }
    return {**config, "outcome": trial["outcome"], "without_graph": trial.get("without_graph", []), "metrics": metrics}


if __name__ == "__main__":
    main()
