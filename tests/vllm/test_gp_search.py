"""Where torch is installed, studies under 300 trials search with a Gaussian process; the engine has it."""

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.vllm

SEARCH = """
import json, math
from search_spaces.candidate import candidate_key
from search_spaces.serving import ServingConfig
from tuner.core.search import Search, sampler

some = [ServingConfig(max_num_seqs=2**s, max_num_batched_tokens=512 * 2**b) for s in range(1, 13) for b in range(12)]
search = Search(candidates=some, trials=40, seed=0)
best = -9.0
keys = []
for _ in range(25):
    choice = search.ask()
    config = choice.candidate
    value = -0.1 * abs(math.log2(config.max_num_seqs) - 9) - 0.1 * abs(math.log2(config.max_num_batched_tokens) - 12)
    best = max(best, value)
    keys.append(candidate_key(config))
    search.tell(keys[-1], value)
print(json.dumps({
    "name": search.sampler_name, "best": best, "keys": len(set(keys)), "many": type(sampler(300, 0)).__name__,
    "why": choice.why,
}))
"""


def test_a_gaussian_process_searches_small_studies_where_torch_is(engine_python: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [engine_python, "-c", SEARCH],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["name"] == found["why"] == "GPSampler"
    assert found["many"] == "TPESampler"
    assert found["keys"] == 25
    assert found["best"] >= -0.2
