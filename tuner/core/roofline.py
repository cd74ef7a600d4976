"""The least time that a decode GEMM can take on a GPU: its weights are read once. Knows no tile."""

from dataclasses import dataclass

from tuner.core.workload import GemmProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """multiprocessors: SMs.   bytes_per_us: read from memory.   l2_bytes: weights that small stay in the cache
    between two launches.   launch_us: from one kernel's end to the next one's first load, in a CUDA graph."""

    name: str
    multiprocessors: int
    bytes_per_us: float
    l2_bytes: int
    launch_us: float = 2.0


# H200: 132 SMs and 60 MB of L2 as PyTorch reports them; 4.3 TB/s was copied, 4.4 TB/s read by the fastest tiles
# (2026-10-28 and 2026-12-01). GB300: data sheet bandwidth; 152 SMs as vLLM 0.33.0's expert grids; its L2 is not known.
H200 = Gpu(name="H200", multiprocessors=132, bytes_per_us=4.4e6, l2_bytes=60 * 2**20)
GB300 = Gpu(name="GB300", multiprocessors=152, bytes_per_us=8.0e6, l2_bytes=256 * 2**20)

GPUS = {gpu.name: gpu for gpu in (H200, GB300)}


def floor_us(problem: GemmProblem, gpu: Gpu) -> float:
    return problem.weight_bytes / gpu.bytes_per_us + gpu.launch_us
