"""Ask lm-eval's own client of OpenAI servers which questions of a task a server answers rightly.

Runs in the interpreter that has lm-eval; the server may have another. Prompts are sent as text, so no tokenizer is
needed here.
"""

from importlib.metadata import version
from typing import Any

from tuner_inside.channel import serve

CLIENT = "local-completions"


def main() -> None:
    serve(answer)


def answer(question: dict[str, Any]) -> Any:
    """question: `tasks` and `folder` (of further tasks, or null) alone: what they are. With `base_url` and `model`:
    the answers to each task's questions."""
    import aiohttp  # noqa: F401 - what lm-eval's client needs, and says only when it is first used
    import requests  # noqa: F401
    import tenacity  # noqa: F401
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=question["folder"])
    if "base_url" not in question:
        return [_described(manager, name, question["limit"]) for name in question["tasks"]]
    return [_answered(manager, name, question) for name in question["tasks"]]


def _described(manager: Any, name: str, limit: int | None) -> dict[str, Any]:
    """Loads the data set too, so that what is missing is missed before an engine is started."""
    tasks = manager.load([name])["tasks"].values()
    sizes = [len(task.eval_docs) for task in tasks]
    return {
        "name": name,
        "kinds": sorted({str(task.get_config("output_type")) for task in tasks}),
        "questions": sum(size if limit is None else min(size, limit) for size in sizes),
    }


def _answered(manager: Any, name: str, question: dict[str, Any]) -> dict[str, Any]:
    from lm_eval.evaluator import simple_evaluate

    found = simple_evaluate(
        model=CLIENT,
        model_args={
            "model": question["model"],
            "base_url": question["base_url"] + "/v1/completions",
            "tokenizer_backend": "none",
            "num_concurrent": question["concurrency"],
            "max_retries": 1,
            "timeout": question["timeout_s"],
        },
        tasks=[name],
        limit=question["limit"],
        bootstrap_iters=0,
        log_samples=True,
        task_manager=manager,
    )
    return {"name": name, "version": version("lm-eval"), **judged(found["samples"])}


def judged(samples: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Of one task, or of all subtasks of a group, in the order of their questions.

    Where a task judges each answer in several ways, its first filter and its first metric of right or wrong count.

    Raises:
        ValueError: no metric of a task says right or wrong.
    """
    asked: list[str] = []
    right: list[bool] = []
    metrics: dict[str, None] = {}
    for task, every in sorted(samples.items()):
        first = every[0]["filter"] if every else ""
        rows = sorted((row for row in every if row["filter"] == first), key=lambda row: int(row["doc_id"]))
        metric = next((name for name in (rows[0]["metrics"] if rows else ()) if _is_right_or_wrong(rows, name)), None)
        if metric is None:
            raise ValueError(f"task {task} judges no answer as right or wrong")
        metrics[f"{metric}, {first}"] = None
        asked += [str(row["prompt_hash"]) for row in rows]
        right += [bool(row[metric]) for row in rows]
    return {"metric": " and ".join(metrics), "questions": asked, "right": right}


def _is_right_or_wrong(rows: list[dict[str, Any]], metric: str) -> bool:
    return all(isinstance(row[metric], bool | int | float) and row[metric] in (0, 1) for row in rows)


if __name__ == "__main__":
    main()
