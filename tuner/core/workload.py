"""What is asked of an engine or a kernel, one measurement's worth. Knows nothing of how it is measured."""

from dataclasses import dataclass

from tuner.core.acceptance import REAL, Acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWorkload:
    """One traffic pattern.

    input_tokens, output_tokens: per request.   context_tokens: tokens in the KV cache before decoding starts,
    input included.   concurrency: requests in flight.   requests: requests in one run, warm-up excluded.
    request_rate: requests per second; None sends the next as soon as one ends.   dataset: `random`, or a file's path.
    """

    input_tokens: int
    output_tokens: int
    context_tokens: int
    concurrency: int
    requests: int
    request_rate: float | None = None
    dataset: str = "random"
    acceptance: Acceptance = REAL
    seed: int = 0

    @property
    def kind(self) -> str:
        return "serving"

    @property
    def key(self) -> str:
        """Short and unique within a study: it names the workload in tables and files."""
        return f"c{self.concurrency}-ctx{self.context_tokens}"

    @property
    def prompt_tokens(self) -> int:
        """Tokens that one request sends: the context, of which the input is the last part."""
        return max(self.input_tokens, self.context_tokens)

    @property
    def max_model_len(self) -> int:
        """A context length that serves the workload, with room for prompts that come out longer than asked for.

        A benchmark's random prompt is made of token ids, sent as text and encoded again: one of eight prompts of 16
        tokens was too long for 16 + 256 (vLLM 0.25.1 on an H200, 2026-12-01: HTTP 400).
        """
        return self.prompt_tokens + self.output_tokens + 16 + self.prompt_tokens // 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmProblem:
    """out[m, n] = sum over k of x[m, k] * w[n, k]; sizes in elements."""

    n: int
    k: int
    m: int
    dtype: str = "bfloat16"
    name: str = ""

    @property
    def kind(self) -> str:
        return "gemm"

    @property
    def key(self) -> str:
        return f"{self.n}x{self.k}-m{self.m}-{self.dtype}"

    @property
    def weight_bytes(self) -> int:
        return self.n * self.k * {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3": 1}[self.dtype]


Workload = ServingWorkload | GemmProblem
