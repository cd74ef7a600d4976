"""CUDA graph capture sizes that fit a candidate. Derived, never a reason to reject."""

EVERY_REQUEST_COUNT = 16
# vLLM's own default ceiling on data-centre Blackwell (0.33.0, config/vllm.py); a full decode batch may exceed it here.
CEILING = 1024


def capture_sizes(*, max_num_seqs: int, tokens_per_request: int, max_num_batched_tokens: int) -> tuple[int, ...] | None:
    """Steps of M = requests x (drafts + 1) tokens, each a multiple of drafts + 1; None where none fits.

    vLLM rounds every given size up to a multiple of drafts + 1 and drops what then exceeds the largest one given
    (0.33.0, config/compilation.py); a step larger than the largest runs without a graph. On an H200 with 8 requests
    that made 4 drafts 4 times slower than 3 (vLLM 0.25.1, 2026-12-01), so the sizes are exact from the start.
    Every request count up to 16, then every 8th, then every 16th; beyond max_num_seqs as many tokens again for steps
    that also hold a prefill, which vLLM's defaults cover as well.
    """
    counts = {
        count
        for count in range(1, 2 * max_num_seqs + 1)
        if count <= EVERY_REQUEST_COUNT or count % (8 if count <= 128 else 16) == 0
    }
    full = max_num_seqs * tokens_per_request
    ceiling = max(full, min(2 * full, CEILING))
    sizes = {count * tokens_per_request for count in counts if count * tokens_per_request <= ceiling} | {full}
    return tuple(sorted(size for size in sizes if size <= max_num_batched_tokens)) or None


def captured(given: tuple[int, ...] | None, tokens_per_request: int) -> tuple[int, ...] | None:
    """The sizes of uniform decode steps that vLLM captures of those given; None where its defaults decide.

    With drafts each is rounded up to a multiple of drafts + 1, and what then exceeds the largest one given is dropped:
    of 1, 2, 4 ... 64 with 5 drafts, 6, 12, 18 and 36 are left (seen in the log of vLLM 0.25.1 on an H200, 2026-12-01).
    """
    if given is None:
        return None
    rounded = {-(-size // tokens_per_request) * tokens_per_request for size in given}
    return tuple(sorted(size for size in rounded if size <= max(given)))
