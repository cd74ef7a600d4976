"""What is asked of an engine or a kernel, one measurement's worth. Knows nothing of how it is measured."""

from dataclasses import dataclass, field
from pathlib import PurePath

from tuner.core.acceptance import REAL, Acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Where prompts come from. kind: random, prompts, sharegpt or trace.   sha256: of the file, which is its identity.
    path: where the file is now; two copies of one file are the same data."""

    kind: str = "random"
    sha256: str = ""
    path: str = field(default="", compare=False)

    @property
    def is_random(self) -> bool:
        return self.kind == "random"

    @property
    def is_trace(self) -> bool:
        return self.kind == "trace"

    def __str__(self) -> str:
        return "random tokens" if self.is_random else f"{self.kind} {PurePath(self.path).name} ({self.sha256[:12]})"


RANDOM = Dataset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWorkload:
    """One traffic pattern.

    input_tokens, output_tokens: per request.   context_tokens: tokens in the KV cache before decoding starts,
    input included.   concurrency: requests in flight.   requests: requests in one run, warm-up excluded.
    request_rate: requests per second; None sends the next as soon as one ends.
    synthetic_kv: the context is not computed: the cache is filled with made-up values (vLLM's DecodeBenchConnector).
    quiet_s: the longest pause of a trace.

    Of prompts and conversations, the input and output tokens are the most of one request. Of a trace they are its
    longest, the concurrency is the sessions whose time overlaps, and its own times say when a request is sent.
    """

    input_tokens: int
    output_tokens: int
    context_tokens: int
    concurrency: int
    requests: int
    request_rate: float | None = None
    dataset: Dataset = RANDOM
    acceptance: Acceptance = REAL
    seed: int = 0
    synthetic_kv: bool = False
    quiet_s: float = 0.0

    @property
    def kind(self) -> str:
        return "serving"

    @property
    def key(self) -> str:
        """Short and unique within a study: it names the workload in tables and files."""
        if self.dataset.is_trace:
            return f"trace-{self.dataset.sha256[:8]}"
        return f"c{self.concurrency}-ctx{self.context_tokens}{'-synthetic-kv' if self.synthetic_kv else ''}"

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
