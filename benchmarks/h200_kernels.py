"""A study of every Kimi K3 decode GEMM on one H200: vLLM's own choice, cuBLAS, and tiles of vLLM's kernel
and of our decode GEMM.

    python -m benchmarks.h200_kernels plan    --stock stock.json -o plan.json
    python -m benchmarks.h200_kernels compile plan.json --dsl PYTHON --vllm FOLDER --runtimes FOLDER -o kernels.so
    python -m benchmarks.h200_kernels time    plan.json --engine PYTHON --vllm FOLDER --library kernels.so -o raw.jsonl
    python -m benchmarks.h200_kernels decide  raw.jsonl --device-seconds 540

Only `time` needs the GPU; it compiles what no `--library` brings. Called again with the same output it goes on where it
stopped. stock.json is what `python -m tuner_inside.kernel_table` prints in vLLM's interpreter.
"""

import argparse

from benchmarks.h200_decide import decide
from benchmarks.h200_plan import compile_plan, make_plan
from benchmarks.h200_timing import absolute, time_all
from kernels.targets import BOTH_TARGET


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(required=True)
    planning = commands.add_parser("plan")
    planning.add_argument("--stock", type=absolute, required=True)
    planning.add_argument("--earlier", type=absolute, help="a result of `decide`: its finalists are vLLM's tiles")
    planning.add_argument(
        "--decode-earlier", type=absolute, help="a result of h200_decode_gemm: its fastest come first"
    )
    planning.add_argument("--decode-tiles", type=int, default=10, help="of our decode GEMM, for each problem")
    planning.add_argument("-o", "--output", type=absolute, required=True)
    planning.set_defaults(run=make_plan)
    compiling = commands.add_parser("compile")
    compiling.add_argument("plan", type=absolute)
    compiling.add_argument("--dsl", type=absolute, required=True, help="an interpreter that has nvidia-cutlass-dsl")
    compiling.add_argument(
        "--path", type=absolute, action="append", default=[], help="further folders for its PYTHONPATH"
    )
    compiling.add_argument("--vllm", type=absolute, required=True)
    compiling.add_argument("--architecture", default="sm_90a")
    compiling.add_argument("--processes", type=int, default=2)
    compiling.add_argument(
        "--runtimes", type=absolute, action="append", help="folders of the DSL's and tvm-ffi's libraries"
    )
    compiling.add_argument("-o", "--output", type=absolute, required=True)
    compiling.set_defaults(run=compile_plan)
    timing = commands.add_parser("time")
    timing.add_argument("plan", type=absolute)
    timing.add_argument("--engine", type=absolute, required=True)
    timing.add_argument("--vllm", type=absolute)
    timing.add_argument(
        "--path", type=absolute, action="append", default=[], help="further folders for the worker's PYTHONPATH"
    )
    timing.add_argument("--library", type=absolute, help="what `compile` linked")
    timing.add_argument("--runtime", type=absolute, help="libcute_dsl_runtime.so, which the library needs")
    timing.add_argument("--target", default=BOTH_TARGET)
    timing.add_argument("--device", default="cuda")
    timing.add_argument("--problems", type=int, help="so many only, spread over the plan")
    timing.add_argument("--passes", type=int, help="so many; by the time that is left without it")
    timing.add_argument("--seconds", type=float, default=500.0)
    timing.add_argument("--search-seconds", type=float, default=250.0, help="the search's share of them")
    timing.add_argument("-o", "--output", type=absolute, required=True)
    timing.set_defaults(run=time_all)
    deciding = commands.add_parser("decide")
    deciding.add_argument("raw", type=absolute, nargs="+")
    deciding.add_argument("--device-seconds", type=float, required=True, help="for which the GPU was held")
    deciding.add_argument("--table", type=absolute, help="where the tuned table goes; beside the result without it")
    deciding.set_defaults(run=decide)
    return made


def main() -> None:
    arguments = parser().parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
