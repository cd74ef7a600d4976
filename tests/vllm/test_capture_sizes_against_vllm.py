"""vLLM keeps every capture size that we derive; the sizes that people write by hand it does not."""

import pytest
from asking import ask, python_files

from search_spaces.capture_sizes import capture_sizes

pytestmark = pytest.mark.vllm

# The sizes of the H200 run in which 4 drafts seemed 4 times slower than 3 at 8 requests (2026-12-01).
BY_HAND = [1, 2, 4, 8, 16, 32, 64]


def test_vllm_0_33_keeps_every_derived_capture_size() -> None:
    cases = [(seqs, q, tokens) for seqs in (1, 2, 7, 8, 32, 64, 256) for q in range(1, 9) for tokens in (2048, 16384)]
    derived = [
        capture_sizes(max_num_seqs=seqs, tokens_per_request=q, max_num_batched_tokens=tokens)
        for seqs, q, tokens in cases
    ]
    question = [{"sizes": sizes, "tokens_per_request": q} for sizes, (_, q, _) in zip(derived, cases, strict=True)]
    by_hand = {"sizes": BY_HAND, "tokens_per_request": 6}
    *answer, lost = ask("capture_sizes.py", [*question, by_hand], files=python_files())
    assert [tuple(sizes) for sizes in answer] == derived
    assert 8 * 6 not in lost, "by hand, the full step of 8 requests with 5 drafts has no graph"
