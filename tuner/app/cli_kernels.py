"""`tuner kernels`: what decode GEMMs there are and what vLLM runs for them; and compiling tiles without a GPU."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from kernels.table import TunedTable
    from kernels.targets import Tile
    from tuner.core.compiled import CompiledKernel

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)

TpOption = Annotated[list[int] | None, typer.Option("--tp", help="Tensor-parallel sizes. [default: 8 and 16]")]
RowsOption = Annotated[int, typer.Option("--rows", min=1, max=16, help="Problems of 1 to so many rows.")]
GpuOption = Annotated[str, typer.Option("--gpu", help="Whose table of vLLM's: H200, B200, GB300, ...")]
DbOption = Annotated[
    str | None, typer.Option("--db", help="Database URL. [default: $TUNER_DB, else a file in your home]")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def register(app: typer.Typer) -> None:
    kernels = typer.Typer(help="Kimi K3's decode GEMMs and their tiles.", no_args_is_help=True)
    kernels.command("list")(list_problems)
    kernels.command("compile")(compile_kernels)
    app.add_typer(kernels, name="kernels")


def list_problems(
    tp: TpOption = None,
    rows: RowsOption = 8,
    gpu: GpuOption = "H200",
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the problems that vLLM's tile table may decide, what vLLM 0.33.0 runs for each, and its tile as compiled
    here."""
    from search_spaces.gemm import skinny_space
    from search_spaces.vllm_gemm import vllm_choice
    from tuner.app.wiring import compiled_kernels

    with compiled_kernels(db) as kept:
        compiled = kept.all()
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
                "compiled": [_resources(one) for one in compiled if (one.m, one.tile) == (problem.m, choice)],
            }
        )
    if as_json:
        sys.stdout.write(json.dumps({"gpu": gpu, "problems": found}, indent=2) + "\n")
        return
    table = Table("n", "k", "m", "legal tiles", f"vLLM on {gpu}", "compiled", "layers", box=None, pad_edge=False)
    for row in found:
        vllm = ", ".join(f"{name} {value}" for name, value in row["vllm"].items() if name != "kind")
        kernels = ", ".join(f"{one['architecture']}: {_in_short(one)}" for one in row["compiled"])
        table.add_row(*(str(row[name]) for name in ("n", "k", "m", "legal_tiles")), vllm, kernels, row["name"])
    out.print(table, soft_wrap=False)


def compile_kernels(
    dsl: Annotated[Path, typer.Option("--dsl", help="An interpreter that has nvidia-cutlass-dsl.")],
    vllm: Annotated[Path | None, typer.Option(help="Folder of the vllm package, where --dsl has none.")] = None,
    architecture: Annotated[str, typer.Option(help="sm_90a, sm_100a or sm_103a.")] = "sm_90a",
    table: Annotated[Path | None, typer.Option(help="A tuned table; its tiles instead of vLLM's own.")] = None,
    tiles: Annotated[
        Path | None, typer.Option(help='Tiles of any kernel instead: a JSON list of {"kind", "values", "m"}.')
    ] = None,
    to_table: Annotated[
        Path | None, typer.Option(help="With --table: write its tiles here as a table of --gpu, marked not_measured.")
    ] = None,
    tp: TpOption = None,
    rows: RowsOption = 8,
    gpu: GpuOption = "H200",
    processes: Annotated[int, typer.Option(min=1)] = 2,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Also keep the objects in this folder.")] = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile tiles without a GPU: registers, spills and shared memory of each, kept in the database. Nothing is
    measured."""
    import tempfile

    from kernels.compile import ARCHITECTURES, CompileError, Toolchain, compile_tiles, resources
    from tuner.app.errors import StoppedError, WrongInputError
    from tuner.app.wiring import compiled_kernels
    from tuner.engines.engine import INSIDE

    if architecture not in ARCHITECTURES:
        raise WrongInputError(f"--architecture: {architecture!r} is none of {', '.join(ARCHITECTURES)}")
    if to_table is not None and table is None:
        raise WrongInputError("--to-table: name the table whose tiles it takes in --table")
    tuned = _tuned(table) if table is not None else None
    if tuned is not None:
        jobs: list[tuple[int, Tile]] = [(entry.problem.m, entry.tile) for entry in tuned.entries]
    elif tiles is not None:
        jobs = _named_tiles(tiles)
    else:
        jobs = _stock_tiles(gpu, tp, rows)
    capability = _capability(gpu) if to_table is not None else ""
    tools = Toolchain(python=dsl.absolute(), inside=INSIDE, vllm=vllm.absolute() if vllm is not None else None)
    with compiled_kernels(db) as kept, tempfile.TemporaryDirectory() as temporary:
        folder = output.absolute() if output is not None else Path(temporary)
        try:
            found = compile_tiles(tools, jobs, folder, architecture=architecture, processes=processes)
        except (CompileError, OSError) as error:
            raise StoppedError(f"--dsl: {error}") from error
        kept.keep(found)
    if to_table is not None and tuned is not None:
        _write_table(to_table, tuned, found, gpu, capability)
    if as_json:
        document = {"architecture": architecture, "status": "not_measured", "kernels": resources(found)}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    shown = Table("rows", "tile", "registers", "spills", "shared bytes", "code bytes", box=None, pad_edge=False)
    for one in found:
        tile = ", ".join(f"{name} {value}" for name, value in one.tile.values().items())
        spilled = f"{one.local_bytes} bytes" if one.spills else "none"
        figures = [str(one.registers), spilled, str(one.shared_bytes), str(one.code_bytes)]
        figures = ["refused", one.refused, "", ""] if one.refused else figures
        shown.add_row(str(one.m), tile, *figures)
    out.print(shown, soft_wrap=False)
    err.print(f"{len(found)} kernels for {architecture}: compiled, not measured")


def _tuned(path: Path) -> "TunedTable":
    from kernels.table import TableError, from_json
    from tuner.app.errors import WrongInputError

    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, TableError) as error:
        raise WrongInputError(f"--table: {path}: {error}") from error


def _named_tiles(path: Path) -> "list[tuple[int, Tile]]":
    from kernels.targets import tile_of
    from tuner.app.errors import WrongInputError

    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        named = [(int(row["m"]), tile_of(row["kind"], row["values"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WrongInputError(f"--tiles: {path}: {type(error).__name__} {error}") from error
    if not named:
        raise WrongInputError(f"--tiles: {path} names no tile")
    return named


def _stock_tiles(gpu: str, tp: list[int] | None, rows: int) -> "list[tuple[int, Tile]]":
    from search_spaces.gemm import SkinnyTile
    from search_spaces.vllm_gemm import vllm_choice
    from tuner.app.errors import WrongInputError

    choices = ((p.m, vllm_choice(gpu, p.n, p.k, p.m)) for p in _problems(tp, rows))
    jobs: list[tuple[int, Tile]] = [(m, choice) for m, choice in choices if isinstance(choice, SkinnyTile)]
    if not jobs:
        raise WrongInputError(f"--gpu: vLLM has no tile for {gpu} among these problems")
    return jobs


def _capability(gpu: str) -> str:
    from search_spaces.vllm_gemm import capability_of
    from tuner.app.errors import WrongInputError

    capability = capability_of(gpu)
    if capability is None:
        raise WrongInputError(f"--gpu: vLLM has no tile table for {gpu}")
    return capability


def _write_table(path: Path, tuned: "TunedTable", found: "Sequence[CompiledKernel]", gpu: str, capability: str) -> None:
    from datetime import UTC, datetime

    from kernels.table import compiled_table, to_json
    from search_spaces.vllm_gemm import vllm_choice

    made = compiled_table(
        tuned, found, gpu=gpu, capability=capability, date=datetime.now(UTC).date().isoformat(),
        stock=lambda problem: vllm_choice(gpu, problem.n, problem.k, problem.m),
    )  # fmt: skip
    path.write_text(to_json(made), encoding="utf-8")
    err.print(f"{path}: {len(made.entries)} tiles, not measured on {gpu}")


def _resources(one: "CompiledKernel") -> dict[str, Any]:
    names = ("architecture", "kernel_version", "compiler", "registers", "local_bytes", "shared_bytes", "code_bytes")
    return {**{name: getattr(one, name) for name in names}, "refused": one.refused, "status": "not_measured"}


def _in_short(one: dict[str, Any]) -> str:
    if one["refused"]:
        return "refused"
    return f"{one['registers']} registers" + (f", {one['local_bytes']} bytes spilled" if one["local_bytes"] else "")


def _problems(tp: list[int] | None, rows: int) -> list[Any]:
    from kernels.problems import problems
    from tuner.app.errors import WrongInputError

    try:
        found = {(p.n, p.k, p.m): p for size in tp or (8, 16) for p in problems(size, range(1, rows + 1))}
    except ValueError as error:
        raise WrongInputError(f"--tp: {error}") from error
    return [problem for _, problem in sorted(found.items())]
