"""What an engine reads besides its configuration: tuned tile tables, and the autotune cache that it fills itself.

Two runs of one configuration drew other kernels in 86 of 191 entries of that cache and were 9 % apart in serving
(flashinfer issue 3920, GB300). So a candidate has one cache for all its starts, no other candidate has it too, and what
is in it is part of the start's fingerprint.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from search_spaces.candidate import Candidate, candidate_key
from tuner.core.comparability import AUTOTUNE_CACHE, KERNEL_TABLE
from tuner.core.vllm_args import KERNEL_TABLE_VARIABLE

AUTOTUNE_VARIABLE = "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR"  # read by vLLM 0.32 and 0.33
# One file a rank. The store of a single GPU (FlashInfer's second version) keeps its own account of the environment.
_AUTOTUNE_FILES = "**/autotune_configs*.json"


def autotune_folder(runs: Path, candidate: Candidate) -> Path:
    """Of that candidate, whichever start it is."""
    return runs / "autotune" / hashlib.sha256(candidate_key(candidate).encode()).hexdigest()[:16]


def hashes(variables: Mapping[str, str]) -> dict[str, str]:
    """Setting to hash of what those variables of an engine name, for what is there."""
    found = {}
    table = Path(variables.get(KERNEL_TABLE_VARIABLE, ""))
    if table.is_file():
        found[KERNEL_TABLE] = hashlib.sha256(table.read_bytes()).hexdigest()
    folder = variables.get(AUTOTUNE_VARIABLE)
    files = sorted(Path(folder).glob(_AUTOTUNE_FILES)) if folder else []
    if files:
        digest = hashlib.sha256()
        for file in files:
            digest.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
        found[AUTOTUNE_CACHE] = digest.hexdigest()
    return found
