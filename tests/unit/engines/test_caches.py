"""One autotune cache a candidate; what an engine read is part of what its numbers were measured on."""

from dataclasses import replace
from pathlib import Path

from search_spaces.serving import ServingConfig
from tuner.core.comparability import fingerprint_differences
from tuner.core.measurement import Fingerprint
from tuner.core.vllm_args import KERNEL_TABLE_VARIABLE
from tuner.engines.caches import AUTOTUNE_VARIABLE, autotune_folder, hashes

CONFIG = ServingConfig(tensor_parallel_size=2)


def test_starts_of_a_candidate_share_a_cache_and_no_two_candidates_do(tmp_path: Path) -> None:
    here = autotune_folder(tmp_path, CONFIG)
    assert here == autotune_folder(tmp_path, replace(CONFIG))
    assert here != autotune_folder(tmp_path, replace(CONFIG, max_num_seqs=8))


def test_the_hash_is_of_every_ranks_file_and_of_nothing_else(tmp_path: Path) -> None:
    variables = {AUTOTUNE_VARIABLE: str(tmp_path)}
    assert hashes(variables) == {}
    inner = tmp_path / "abc"
    inner.mkdir()
    (inner / "autotune_configs_dp0_rank0.json").write_text("{}")
    one = hashes(variables)
    (inner / ".autotune_configs.json.x.tmp").write_text("half")
    assert hashes(variables) == one
    (inner / "autotune_configs_dp0_rank1.json").write_text('{"tactic": 3}')
    assert hashes(variables) != one


def test_another_autotune_cache_forbids_joining_two_starts_of_one_candidate(tmp_path: Path) -> None:
    """flashinfer#3920: the same configuration, other tactics, 9 % apart."""
    (tmp_path / "autotune_configs.json").write_text("1")
    first = Fingerprint(
        engine="vllm", versions={}, gpu="x", gpus=1, settings=hashes({AUTOTUNE_VARIABLE: str(tmp_path)})
    )
    (tmp_path / "autotune_configs.json").write_text("2")
    second = replace(first, settings=hashes({AUTOTUNE_VARIABLE: str(tmp_path)}))
    assert fingerprint_differences(first, second, same_candidate=True)
    assert not fingerprint_differences(first, second, same_candidate=False)


def test_a_tile_table_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    assert hashes({KERNEL_TABLE_VARIABLE: str(table)}) == {}
    table.write_text("{}")
    assert len(hashes({KERNEL_TABLE_VARIABLE: str(table)})["kernel_table_sha256"]) == 64
