"""Run by the interpreter of the engine, on vLLM 0.33.0: load tables through our plug-in and ask vLLM's own plan.

question: {"capability": [10, 3], "tables": [document or null, ...], "shape": [n, k]}.   answer: for each table, the
plan for that shape (rows to [backend, tile or null]) and what was logged. One process a table, since a table is put in
when the module is imported.
"""

import json
import logging
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

NAMES = ("block_size", "outputs_per_block", "k_unroll", "vector_width", "static_k")


def ask(capability, document, shape, answers):
    from vllm.platforms import current_platform

    type(current_platform).is_device_capability = classmethod(lambda cls, asked, *a, **k: tuple(asked) == capability)
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    log = logging.getLogger("vllm.tuner_inside.kernel_table")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        if document is not None:
            path = Path(folder, "table.json")
            path.write_text(document if isinstance(document, str) else json.dumps(document))
            os.environ["TUNER_KERNEL_TABLE"] = str(path)
        from tuner_inside.plugin import register

        register()
        from vllm.models.kimi_k3.nvidia import low_latency_gemm as module

        spec = module._low_latency_table()[tuple(shape)]
        plan = {
            m: [backend, None if config is None else {name: getattr(config, name) for name in NAMES}]
            for m, (backend, config) in module._build_plan(spec).items()
        }
    answers.put({"plan": plan, "log": lines})


def main(question):
    found = []
    for document in question["tables"]:
        answers = multiprocessing.Queue()
        child = multiprocessing.Process(
            target=ask, args=(tuple(question["capability"]), document, question["shape"], answers)
        )
        child.start()
        found.append(answers.get(timeout=120))
        child.join()
    return found


if __name__ == "__main__":
    sys.path.insert(0, json.loads(Path(sys.argv[1]).read_text())["inside"])
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
