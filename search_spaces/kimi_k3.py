"""Kimi K3 decode on GB300: what may be tried, and the rules of vLLM 0.33.0's specialised decode path.

Sources: vLLM 0.33.0, `models/kimi_k3/nvidia/specialized_decode/runtime/__init__.py` (`unsupported`), and vLLM's post of
2026-10-16 that announced the path. The rules are compared with that function over the whole grid and outside it by
tests/vllm/test_k3_rules_against_vllm.py. `latency_specialized` refuses nothing for its batch: larger steps fall back.
"""

from collections.abc import Callable
from functools import cache

from search_spaces.capture_sizes import capture_sizes
from search_spaces.knob import Knob, Scalar, Values
from search_spaces.rule import Rule
from search_spaces.serving import ServingConfig
from search_spaces.setting import Setting
from search_spaces.space import Space, SpaceError
from search_spaces.vllm_rules import BATCH_BUDGET, DCP_DIVIDES_TP, gpus_available, option

NAME = "kimi_k3_gb300"
SPECIALIZED = "latency_specialized"
DRAFT_MODEL = "Inferact/Kimi-K3-DSpark"
GREEDY = "greedy/standard"
PROBABILISTIC = "probabilistic/block"
TENSOR_PARALLEL = (8, 16)
DRAFT_LENGTHS = (0, 3, 4, 5, 6, 7)
# The largest is vLLM's default for a server on GPUs with 160 GB and more (0.33.0, engine/arg_utils.py).
BATCHED_TOKENS = (2048, 8192, 16384)
FAMILY_100 = ("B200", "GB200", "B300", "GB300")

# FP8 keys and values want these prefill settings (vLLM's Kimi K3 recipe).
_FP8_PREFILL = (
    ("attention-config.mla_prefill_backend", "FLASHINFER"),
    ("attention-config.use_prefill_query_quantization", True),
)
_FULL_DECODE = (None, "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
_RUNTIME = "vLLM 0.33.0, models/kimi_k3/nvidia/specialized_decode/runtime/__init__.py"


def specialized(values: Values) -> bool:
    return values["decode_backend"] == SPECIALIZED


def knobs(setting: Setting) -> tuple[Knob, ...]:
    seqs = tuple(sorted({max(1, setting.max_concurrency // 2), setting.max_concurrency}))
    return (
        Knob(name="tensor_parallel_size", choices=tuple(tp for tp in TENSOR_PARALLEL if tp <= setting.gpus)),
        Knob(name="decode_backend", choices=("auto", SPECIALIZED)),
        Knob(name="decode_context_parallel_size", choices=(1, 2, 4, 8, 16)),
        Knob(
            name="dcp_comm_backend",
            choices=("ag_rs", "a2a"),
            active=lambda v: not specialized(v) and v["decode_context_parallel_size"] != 1,
        ),
        Knob(
            name="mla_core",
            choices=("auto", "tokenspeed", "trtllm"),
            active=lambda v: specialized(v) and v["decode_context_parallel_size"] == 1,
        ),
        Knob(name="num_speculative_tokens", choices=DRAFT_LENGTHS),
        Knob(
            name="draft_sampling",
            choices=(GREEDY, PROBABILISTIC),
            active=lambda v: v["num_speculative_tokens"] != 0,
        ),
        Knob(name="kv_cache_dtype", choices=("fp8", "auto")),
        Knob(name="mamba_ssm_cache_dtype", choices=("float32", "bfloat16")),
        Knob(name="max_num_seqs", choices=seqs),
        Knob(name="max_num_batched_tokens", choices=BATCHED_TOKENS),
        Knob(name="enable_expert_parallel", choices=(False, True), active=lambda v: not specialized(v), inert=False),
        Knob(name="kernel_table", choices=("stock", "tuned"), active=lambda v: not specialized(v)),
    )


def _specialized(name: str, sentence: str, holds: Callable[[ServingConfig], bool]) -> Rule:
    """A clause of vLLM's `unsupported`; it binds the specialised path only."""
    return Rule(
        name=f"specialized-{name}",
        sentence=f"the specialised decode does not support {sentence}",
        source=_RUNTIME,
        holds=lambda c: c.decode_backend != SPECIALIZED or holds(c),
        versions="==0.33.0",
    )


def specialized_rules(gpu: str) -> tuple[Rule, ...]:
    """vLLM's clauses in its order; the checks on the model itself and on the V1 runner cannot fail for a candidate."""
    return (
        _specialized("gpu", f"{gpu}: it needs compute capability 10.x", lambda _: gpu.upper() in FAMILY_100),
        _specialized("tp", "TP other than 8 or 16", lambda c: c.tensor_parallel_size in TENSOR_PARALLEL),
        _specialized("pp", "pipeline parallelism", lambda c: c.pipeline_parallel_size == 1),
        _specialized("ep", "expert parallelism", lambda c: not c.enable_expert_parallel),
        _specialized(
            "dbo",
            "dual-batch overlap",
            lambda c: not option(c, "enable_dbo") and int(option(c, "ubatch_size") or 0) <= 1,
        ),
        _specialized(
            "dcp",
            "decode context parallel other than 1 or TP",
            lambda c: c.decode_context_parallel_size in (1, c.tensor_parallel_size),
        ),
        _specialized("sleep", "sleep mode", lambda c: not option(c, "enable_sleep_mode")),
        _specialized("lora", "LoRA", lambda c: not option(c, "enable_lora")),
        _specialized(
            "compile",
            "torch.compile's stock mode",
            lambda c: (
                c.enforce_eager is True or option(c, "compilation_config.mode") not in (1, "1", "STOCK_TORCH_COMPILE")
            ),
        ),
        _specialized(
            "graphs",
            "deployments without FULL decode CUDA graphs (enforce_eager, or another cudagraph_mode)",
            lambda c: not c.enforce_eager and c.cudagraph_mode in _FULL_DECODE,
        ),
        _specialized(
            "method",
            "speculative methods but DSpark",
            lambda c: c.num_speculative_tokens == 0 or c.speculative_method == "dspark",
        ),
        _specialized(
            "adaptive",
            "adaptive verification",
            lambda c: c.num_speculative_tokens == 0 or not option(c, "speculative_config.enable_adaptive_verification"),
        ),
        _specialized(
            "kda-dtypes",
            "KDA caches other than a BF16 conv state and an FP32 recurrent state",
            lambda c: (
                c.mamba_cache_dtype in (None, "auto", "bfloat16")
                and c.mamba_ssm_cache_dtype in (None, "auto", "float32")
            ),
        ),
        _specialized("replay", "ReplaySSM or RecoverSSM", lambda c: not option(c, "use_replayssm")),
        _specialized("drafts", "more than 7 speculative tokens", lambda c: c.num_speculative_tokens <= 7),
    )


# Stricter than vLLM on purpose: `unsupported` does not ask, and the kernels would read other bytes as FP8.
FP8_KV = Rule(
    name="specialized-fp8-kv",
    sentence="the specialised decode writes and reads FP8 (E4M3) keys and values whatever kv_cache_dtype says; "
    "set kv_cache_dtype to fp8",
    source="vLLM 0.33.0, models/kimi_k3/nvidia/specialized_decode/cutedsl/mla/query.py and mla/prepared.py",
    holds=lambda c: c.decode_backend != SPECIALIZED or c.kv_cache_dtype in ("fp8", "fp8_e4m3"),
    versions="==0.33.0",
)


def _sampler_of_the_curve(draft_sampling: str) -> Rule:
    sample, reject = draft_sampling.split("/")
    return Rule(
        name="sampler-of-the-curve",
        sentence=f"the study's acceptance curve was measured with {draft_sampling}; other samplers accept differently",
        source="the study's workload.acceptance",
        holds=lambda c: (
            c.num_speculative_tokens == 0 or (c.draft_sample_method, c.rejection_sample_method) == (sample, reject)
        ),
    )


def build(setting: Setting) -> Space:
    """Raises SpaceError for fewer GPUs than the smallest engine needs."""
    if setting.gpus < min(TENSOR_PARALLEL):
        raise SpaceError(f"space {NAME!r} needs at least 8 GPUs (hardware.gpus is {setting.gpus})")
    draft = setting.draft_models.get("dspark", DRAFT_MODEL)
    sizes = cache(lambda seqs, q, tokens: capture_sizes(
        max_num_seqs=seqs, tokens_per_request=q, max_num_batched_tokens=tokens
    ))  # fmt: skip

    def make(values: Values) -> ServingConfig:
        v: dict[str, Scalar] = dict(values)
        sampling = v.pop("draft_sampling")
        sample, reject = str(sampling).split("/") if sampling is not None else (None, None)
        drafts = v["num_speculative_tokens"] != 0
        return ServingConfig(
            **v,  # type: ignore[arg-type]
            speculative_method="dspark" if drafts else None,
            speculative_model=draft if drafts else None,
            draft_sample_method=sample,
            rejection_sample_method=reject,
            max_model_len=setting.max_model_len,
            cudagraph_capture_sizes=sizes(
                v["max_num_seqs"], int(v["num_speculative_tokens"] or 0) + 1, v["max_num_batched_tokens"]
            ),
            options=_FP8_PREFILL if v["kv_cache_dtype"] == "fp8" else (),
        )

    def published(tp: int, **changes: Scalar) -> ServingConfig:
        """The setup of the announcement: DSpark with 7 drafts, FP8 keys and values, no DCP; here of the `auto` path."""
        stock: dict[str, Scalar] = {
            "tensor_parallel_size": tp,
            "decode_backend": "auto",
            "decode_context_parallel_size": 1,
            "dcp_comm_backend": None,
            "mla_core": None,
            "num_speculative_tokens": 7,
            "draft_sampling": setting.draft_sampling or GREEDY,
            "kv_cache_dtype": "fp8",
            "mamba_ssm_cache_dtype": "float32",
            "max_num_seqs": setting.max_concurrency,
            "max_num_batched_tokens": BATCHED_TOKENS[-1],
            "enable_expert_parallel": False,
            "kernel_table": "stock",
        }
        return make({**stock, **changes})

    sizes_of_tp = [tp for tp in TENSOR_PARALLEL if tp <= setting.gpus]
    curve = (_sampler_of_the_curve(setting.draft_sampling),) if setting.draft_sampling else ()
    return Space(
        name=NAME,
        knobs=knobs(setting),
        rules=(
            DCP_DIVIDES_TP,
            gpus_available(setting.gpus),
            BATCH_BUDGET,
            *specialized_rules(setting.gpu),
            FP8_KV,
            *curve,
        ),
        make=make,
        gpus=lambda candidate: candidate.gpus,  # type: ignore[attr-defined]
        baselines={tp: published(tp) for tp in sizes_of_tp},
        seeds=tuple(
            published(tp, decode_backend=SPECIALIZED, mla_core="auto", kernel_table=None) for tp in sizes_of_tp
        ),
    ).for_version(setting.vllm_version)
