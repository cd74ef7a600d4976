"""`tuner kernels`: what decode GEMMs there are and what vLLM runs for them; and compiling tiles without a GPU."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)

TpOption = Annotated[list[int] | None, typer.Option("--tp", help="Tensor-parallel sizes. [default: 8 and 16]")]
RowsOption = Annotated[int, typer.Option("--rows", min=1, max=16, help="Problems of 1 to so many rows.")]
GpuOption = Annotated[str, typer.Option("--gpu", help="Whose table of vLLM's: H200, B200, GB300, ...")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def register(app: typer.Typer) -> None:
    kernels = typer.Typer(help="Kimi K3's decode GEMMs and their tiles.", no_args_is_help=True)
    kernels.command("list")(list_problems)
    kernels.command("compile")(compile_kernels)
    app.add_typer(kernels, name="kernels")


def list_problems(
    tp: TpOption = None, rows: RowsOption = 8, gpu: GpuOption = "H200", as_json: JsonOption = False
) -> None:
    """List the problems that vLLM's tile table may decide, and what vLLM 0.33.0 runs for each."""
    from search_spaces.gemm import skinny_space
    from search_spaces.vllm_gemm import vllm_choice

    found: list[dict[str, Any]] = []
    for problem in _problems(tp, rows):
        choice = vllm_choice(gpu, problem.n, problem.k, problem.m)
        tiles = len(skinny_space(problem.n, problem.k, problem.m, baseline=choice).feasible().candidates)
        found.append(
            {
                "n": problem.n,
                "k": problem.k,
                "m": problem.m,
                "name": problem.name,
                "legal_tiles": tiles,
                "vllm": {"kind": choice.kind, **choice.values()},
            }
        )
    if as_json:
        sys.stdout.write(json.dumps({"gpu": gpu, "problems": found}, indent=2) + "\n")
        return
    table = Table("n", "k", "m", "legal tiles", f"vLLM on {gpu}", "layers", box=None, pad_edge=False)
    for row in found:
        vllm = ", ".join(f"{name} {value}" for name, value in row["vllm"].items() if name != "kind")
        table.add_row(*(str(row[name]) for name in ("n", "k", "m", "legal_tiles")), vllm, row["name"])
    out.print(table, soft_wrap=False)


def compile_kernels(
    dsl: Annotated[Path, typer.Option("--dsl", help="An interpreter that has nvidia-cutlass-dsl.")],
    vllm: Annotated[Path | None, typer.Option(help="Folder of the vllm package, where --dsl has none.")] = None,
    architecture: Annotated[str, typer.Option(help="sm_90a, sm_100a or sm_103a.")] = "sm_90a",
    table: Annotated[Path | None, typer.Option(help="A tuned table; its tiles instead of vLLM's own.")] = None,
    tp: TpOption = None,
    rows: RowsOption = 8,
    gpu: GpuOption = "H200",
    processes: Annotated[int, typer.Option(min=1)] = 2,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Also keep the objects in this folder.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compile tiles without a GPU: registers, spills and shared memory of each. Nothing is measured."""
    import tempfile

    from kernels.compile import ARCHITECTURES, CompileError, Toolchain, compile_tiles, resources
    from kernels.table import TableError, from_json
    from search_spaces.gemm import SkinnyTile
    from search_spaces.vllm_gemm import vllm_choice
    from tuner.app.errors import StoppedError, WrongInputError
    from tuner.engines.engine import INSIDE

    if architecture not in ARCHITECTURES:
        raise WrongInputError(f"--architecture: {architecture!r} is none of {', '.join(ARCHITECTURES)}")
    if table is not None:
        try:
            jobs = [(e.problem.m, e.tile) for e in from_json(table.read_text(encoding="utf-8")).entries]
        except (OSError, UnicodeDecodeError, TableError) as error:
            raise WrongInputError(f"--table: {table}: {error}") from error
    else:
        choices = ((p.m, vllm_choice(gpu, p.n, p.k, p.m)) for p in _problems(tp, rows))
        jobs = [(m, choice) for m, choice in choices if isinstance(choice, SkinnyTile)]
    if not jobs:
        raise WrongInputError(f"--gpu: vLLM has no tile for {gpu} among these problems")
    tools = Toolchain(python=dsl.absolute(), inside=INSIDE, vllm=vllm.absolute() if vllm is not None else None)
    with tempfile.TemporaryDirectory() as temporary:
        folder = output.absolute() if output is not None else Path(temporary)
        try:
            found = compile_tiles(tools, jobs, folder, architecture=architecture, processes=processes)
        except (CompileError, OSError) as error:
            raise StoppedError(f"--dsl: {error}") from error
    if as_json:
        document = {"architecture": architecture, "status": "not_measured", "kernels": resources(found)}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    shown = Table("rows", "tile", "registers", "spills", "shared bytes", "code bytes", box=None, pad_edge=False)
    for one in found:
        tile = ", ".join(f"{name} {value}" for name, value in one.tile.values().items())
        figures = ["refused", one.refused, "", ""] if one.refused else [
            str(one.registers), f"{one.local_bytes} bytes" if one.spills else "none", str(one.shared_bytes),
            str(one.code_bytes),
        ]  # fmt: skip
        shown.add_row(str(one.m), tile, *figures)
    out.print(shown, soft_wrap=False)
    err.print(f"{len(found)} kernels for {architecture}: compiled, not measured")


def _problems(tp: list[int] | None, rows: int) -> list[Any]:
    from kernels.problems import problems
    from tuner.app.errors import WrongInputError

    try:
        found = {(p.n, p.k, p.m): p for size in tp or (8, 16) for p in problems(size, range(1, rows + 1))}
    except ValueError as error:
        raise WrongInputError(f"--tp: {error}") from error
    return [problem for _, problem in sorted(found.items())]
