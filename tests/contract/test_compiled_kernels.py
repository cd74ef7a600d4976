"""Compiled kernels, on every database that we store in."""

from dataclasses import replace

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError

from db.kernels import SqlCompiledKernels
from db.sessions import Sessions
from search_spaces.gemm import SkinnyTile
from tests.contract.conftest import Opens
from tests.contract.nouns import a_compiled_kernel


@pytest.fixture
def engine(migrated_url: str, opens: Opens) -> Engine:
    return opens(migrated_url)


@pytest.fixture
def kernels(engine: Engine) -> SqlCompiledKernels:
    return SqlCompiledKernels(Sessions(engine))


def test_every_kind_of_tile_comes_back_as_it_was_kept(kernels: SqlCompiledKernels) -> None:
    ours = a_compiled_kernel()
    vllms = a_compiled_kernel(
        symbol="skinny_m1_128_2_1_8_k7168",
        tile=SkinnyTile(block_size=128, outputs_per_block=2, static_k=7168),
        local_bytes=16,
    )
    refused = a_compiled_kernel(symbol="z", registers=0, shared_bytes=0, code_bytes=0, refused="ValueError: no\0")
    kernels.keep([vllms, refused, ours])
    assert kernels.all() == [ours, vllms, replace(refused, refused="ValueError: no?")]
    assert [kernel.spills for kernel in kernels.all()] == [False, True, False]


def test_compiled_again_it_is_replaced_and_another_compiler_stands_beside_it(kernels: SqlCompiledKernels) -> None:
    first, again = a_compiled_kernel(), a_compiled_kernel(registers=99)
    others = [
        a_compiled_kernel(compiler="nvidia-cutlass-dsl 9.0"),
        a_compiled_kernel(kernel_version="ffffffffffff"),
        a_compiled_kernel(architecture="sm_90a"),
    ]
    kernels.keep([first])
    kernels.keep([again, *others])
    assert sorted(kernels.all(), key=str) == sorted([again, *others], key=str)


def test_one_that_cannot_be_kept_keeps_the_others_out(kernels: SqlCompiledKernels) -> None:
    with pytest.raises(IntegrityError):
        kernels.keep([a_compiled_kernel(), a_compiled_kernel(symbol="n", registers=None)])
    assert kernels.all() == []


def test_a_tile_of_a_newer_version_is_named_and_not_guessed(kernels: SqlCompiledKernels, engine: Engine) -> None:
    kernels.keep([a_compiled_kernel()])
    with engine.begin() as connection:
        connection.execute(text("UPDATE compiled_kernels SET kind = 'later_gemm'"))
    with pytest.raises(ValueError, match="later_gemm"):
        kernels.all()
