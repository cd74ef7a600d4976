"""What compiled kernels take, by architecture and kernel, of one text and one compiler."""

from typing import Any

import pytest

from benchmarks.compiled_kernels import grouped, summary, versions


def kernel(registers: int, **given: Any) -> dict[str, Any]:
    told = {"architecture": "sm_90a", "kind": "skinny_gemm", "kernel_version": "k1", "compiler": "dsl 1", "refused": ""}
    return {**told, "registers": registers, "shared_bytes": 1024, **given}


def test_kernels_are_counted_by_architecture_and_kind_and_a_refused_one_takes_nothing() -> None:
    kernels = [kernel(40), kernel(60), kernel(0, refused="no"), kernel(50, architecture="sm_103a")]
    found = {name: summary(group) for name, group in grouped(kernels)}
    assert list(found) == ["sm_103a skinny_gemm", "sm_90a skinny_gemm"]
    assert found["sm_90a skinny_gemm"] == {
        "kernels": 3, "least_registers": 40, "most_registers": 60, "most_shared_bytes": 1024,
    }  # fmt: skip


@pytest.mark.parametrize("other", [{"kernel_version": "k2"}, {"compiler": "dsl 2"}])
def test_two_texts_of_one_kernel_or_two_compilers_are_no_result(other: dict[str, str]) -> None:
    ours = kernel(40, kind="decode_gemm", kernel_version="k9")
    assert versions([kernel(40), ours]) == {"skinny_gemm": "k1", "decode_gemm": "k9", "compiler": "dsl 1"}
    with pytest.raises(SystemExit, match="not of one"):
        versions([kernel(40), kernel(41, **other)])
