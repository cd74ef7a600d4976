"""A decode GEMM in CuTe DSL: out[m, n] = sum over k of x[m, k] * w[n, k], bfloat16 in and out, float32 sums, m 1 to 16.

The weights are read once, so the kernel is a pump: all else must not stop it. Every warp of a block works on the same
`rows` of the weights and on its own part of k. Each thread copies 16 bytes at a time from memory into a ring in shared
memory that only it reads, so no barrier is met before the sums are added up. The tensor core takes the weights as its
narrow side (8 rows) and x as its wide one (16 rows), for every m: k is permuted alike in both, so that the 16 bytes of
a thread are the fragments of two instructions. Sums are added in a fixed order, over the warps of a block and then over
the `split_k` blocks of a cluster, each of which finishes a part of the outputs: the result is the same in every run.

Imported only in an interpreter that has the DSL.
"""

from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute import arch

WARP, LANE_BYTES = 32, 16
STEP = 32  # elements of k: the four threads of a row, 16 bytes each
WEIGHT_ROWS = 8  # of a tensor core instruction
MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "


class DecodeGemm:
    """One tile.

    halves: 1 for up to 8 rows of x, 2 for up to 16.   rows: of the weights, for a block.   warps: of a block, side by
    side along k.   depth: steps of 32 elements of k that a warp takes at once.   stages: of the ring.   split_k: blocks
    of a cluster.   early: weights are asked for before the kernel in front has ended, and the next one may start too.
    """

    def __init__(
        self, *, halves: int, rows: int, warps: int, depth: int, stages: int, split_k: int, early: bool
    ) -> None:
        self.tiles = rows // WEIGHT_ROWS
        self.halves = halves  # of the tensor core's wide side, 8 rows of x each
        self.warps, self.depth, self.stages, self.split_k, self.early = warps, depth, stages, split_k, early
        self.pieces = self.tiles + self.halves  # of 16 bytes, a thread and step
        self.stage_bytes = depth * self.pieces * WARP * LANE_BYTES
        self.warp_bytes = stages * self.stage_bytes
        self.sums = rows * halves * WEIGHT_ROWS

    @property
    def smem_bytes(self) -> int:
        return self.warps * self.warp_bytes + (4 * self.sums if self.split_k > 1 else 0)

    @cute.jit
    def __call__(self, x: cute.Tensor, w: cute.Tensor, out: cute.Tensor, stream: Any) -> None:
        n = cute.size(w, mode=[0])
        self.kernel(x, w, out, cute.size(x, mode=[0]), n, cute.size(w, mode=[1])).launch(
            grid=[cute.ceil_div(n, self.tiles * WEIGHT_ROWS), self.split_k, 1],
            block=[self.warps * WARP, 1, 1],
            cluster=[1, self.split_k, 1] if self.split_k > 1 else None,
            smem=self.smem_bytes,
            stream=stream,
            use_pdl=True,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(
        self, x: cute.Tensor, w: cute.Tensor, out: cute.Tensor, m: cutlass.Int32, n: cutlass.Int32, k: cutlass.Int32
    ) -> None:
        thread, _, _ = arch.thread_idx()
        block, part, _ = arch.block_idx()
        warp, lane = arch.make_warp_uniform(thread // WARP), thread % WARP
        group, quarter = lane // 4, lane % 4
        first_row = block * (self.tiles * WEIGHT_ROWS)

        ring = arch.get_dyn_smem(cutlass.Uint8, alignment=128).toint()
        mine = ring + warp * self.warp_bytes + lane * LANE_BYTES

        shares = self.warps * self.split_k
        steps = k // (STEP * self.depth)
        place = part * self.warps + warp
        count = (steps - place + (shares - 1)) // shares
        stride = shares * self.depth * STEP * 2  # bytes of k between two steps of a warp
        start = cutlass.Int64(place * (self.depth * STEP * 2) + quarter * LANE_BYTES)

        sources = []
        for tile in cutlass.range_constexpr(self.tiles):
            row = cutlass.min(first_row + (tile * WEIGHT_ROWS) + group, n - 1)  # past the end: a row again, not written
            sources.append(w.iterator.toint() + cutlass.Int64(row) * (w.stride[0] * 2) + start)
        inputs = []
        for half in cutlass.range_constexpr(self.halves):
            row = cutlass.min(group + half * WEIGHT_ROWS, m - 1)
            inputs.append(x.iterator.toint() + cutlass.Int64(row) * (x.stride[0] * 2) + start)

        if cutlass.const_expr(not self.early):
            arch.griddepcontrol_wait()
        for stage in cutlass.range_constexpr(self.stages - 1):
            if stage < count:
                self.weights(sources, mine + stage * self.stage_bytes, cutlass.Int64(stage * stride))
        if cutlass.const_expr(self.early):
            arch.griddepcontrol_launch_dependents()
            arch.griddepcontrol_wait()
        for stage in cutlass.range_constexpr(self.stages - 1):
            if stage < count:
                self.rows_of_x(inputs, m - group, mine + stage * self.stage_bytes, cutlass.Int64(stage * stride))
            arch.cp_async_commit_group()

        acc = cute.make_rmem_tensor(cute.make_layout((4, self.tiles)), cutlass.Float32)
        acc.fill(0.0)
        read, write = mine, mine + (self.stages - 1) * self.stage_bytes
        end = mine + self.warp_bytes
        for step in cutlass.range(count, unroll=1):
            arch.cp_async_wait_group(self.stages - 2)
            ahead = step + (self.stages - 1)
            if ahead < count:
                self.weights(sources, write, cutlass.Int64(ahead) * stride)
                self.rows_of_x(inputs, m - group, write, cutlass.Int64(ahead) * stride)
            arch.cp_async_commit_group()
            self.multiply(read, acc)
            read += self.stage_bytes
            write += self.stage_bytes
            if read == end:
                read = mine
            if write == end:
                write = mine
        arch.cp_async_wait_group(0)
        if cutlass.const_expr(not self.early):
            arch.griddepcontrol_launch_dependents()
        self.leave(acc, ring + warp * self.warp_bytes + lane * (self.halves * 8))
        if cutlass.const_expr(self.split_k == 1):
            self.finish(ring, thread, first_row, out)
        else:
            self.finish_together(ring, thread, part, first_row, out)

    @cute.jit
    def weights(self, sources: Any, stage: Any, offset: Any) -> None:
        """Ask for one step of the weights."""
        for tile in cutlass.range_constexpr(self.tiles):
            source = sources[tile] + offset
            for deep in cutlass.range_constexpr(self.depth):
                place = (deep * self.pieces + self.halves + tile) * (WARP * LANE_BYTES)
                _copy(stage, place, source, deep * STEP * 2, min(256, 64 * self.depth))

    @cute.jit
    def rows_of_x(self, inputs: Any, left: Any, stage: Any, offset: Any) -> None:
        """Ask for one step of x. left: its rows from this thread's on. A thread whose row x does not have leaves
        anything in its place: rows of the tensor core do not mix, and that one is not written."""
        for half in cutlass.range_constexpr(self.halves):
            if left > half * WEIGHT_ROWS:
                source = inputs[half] + offset
                for deep in cutlass.range_constexpr(self.depth):
                    place = (deep * self.pieces + half) * (WARP * LANE_BYTES)
                    _copy(stage, place, source, deep * STEP * 2, 0)

    @cute.jit
    def multiply(self, stage: Any, acc: cute.Tensor) -> None:
        for deep in cutlass.range_constexpr(self.depth):
            low = _read(stage, deep * self.pieces * WARP * LANE_BYTES)
            zero = cutlass.Int32(0)
            high = (zero, zero, zero, zero)
            if cutlass.const_expr(self.halves == 2):
                high = _read(stage, (deep * self.pieces + 1) * WARP * LANE_BYTES)
            for tile in cutlass.range_constexpr(self.tiles):
                b = _read(stage, (deep * self.pieces + self.halves + tile) * WARP * LANE_BYTES)
                for pair in cutlass.range_constexpr(2):
                    one, two = 2 * pair, 2 * pair + 1
                    c = _mma((low[one], high[one], low[two], high[two]), (b[one], b[two]), acc, tile)
                    for i in cutlass.range_constexpr(4):
                        acc[i, tile] = c[i]

    @cute.jit
    def leave(self, acc: cute.Tensor, mine: Any) -> None:
        """A thread's sums, for the other threads of the block. mine: where its warp's ring was."""
        each = 2 * self.halves  # sums of a thread in a tile
        arch.sync_warp()
        for tile in cutlass.range_constexpr(self.tiles):
            for i in cutlass.range_constexpr(each):
                _store(mine, tile * WARP * each * 4 + 4 * i, acc[i, tile])
        arch.sync_threads()

    @cute.jit
    def add_warps(self, ring: Any, row: Any, column: Any) -> Any:
        """One output's sum over the warps of this block, in their order."""
        thread = (column // WEIGHT_ROWS) * WARP + (row % WEIGHT_ROWS) * 4 + (column % WEIGHT_ROWS) // 2
        at = ring + thread * (self.halves * 8) + (row // WEIGHT_ROWS) * 8 + (column % 2) * 4
        total = _load(at, 0)
        for other in cutlass.range_constexpr(1, self.warps):
            total = total + _load(at, other * self.warp_bytes)
        return total

    @cute.jit
    def finish(self, ring: Any, thread: Any, first: Any, out: cute.Tensor) -> None:
        """Without a cluster: add up and write. first: the first of this block's columns of out."""
        rows, threads = self.tiles * WEIGHT_ROWS, self.warps * WARP
        m, n = cute.size(out, mode=[0]), cute.size(out, mode=[1])
        for turn in cutlass.range_constexpr((self.sums + threads - 1) // threads):
            index = turn * threads + thread
            row, column = index // rows, index % rows
            if row < m and first + column < n:
                out[row, first + column] = self.add_warps(ring, row, column).to(cutlass.BFloat16)

    @cute.jit
    def finish_together(self, ring: Any, thread: Any, part: Any, first: Any, out: cute.Tensor) -> None:
        """Within a cluster: every block adds up, then each finishes its part of the outputs from all blocks' sums."""
        rows, threads = self.tiles * WEIGHT_ROWS, self.warps * WARP
        m, n = cute.size(out, mode=[0]), cute.size(out, mode=[1])
        whole = ring + self.warps * self.warp_bytes
        for turn in cutlass.range_constexpr((self.sums + threads - 1) // threads):
            index = turn * threads + thread
            row, column = index // rows, index % rows
            if row < m:
                _store(whole + 4 * index, 0, self.add_warps(ring, row, column))
        arch.cluster_arrive()
        arch.cluster_wait()
        everyone = threads * self.split_k
        for turn in cutlass.range_constexpr((self.sums + everyone - 1) // everyone):
            index = turn * everyone + part * threads + thread
            row, column = index // rows, index % rows
            if row < m and first + column < n:
                total = _load_from(whole + 4 * index, 0)
                for other in cutlass.range_constexpr(1, self.split_k):
                    total = total + _load_from(whole + 4 * index, other)
                out[row, first + column] = total.to(cutlass.BFloat16)
        arch.cluster_arrive()  # nobody leaves while its sums are read
        arch.cluster_wait()


def _copy(shared: Any, place: int, source: Any, offset: int, ahead: int) -> None:
    """Sixteen bytes, past the first cache; `ahead` is what the second may fetch with them."""
    hint = f".L2::{ahead}B" if ahead else ""
    arch.inline_ptx(
        f"cp.async.cg.shared.global{hint} [{{$r0}}+{place}], [{{$r1}}+{offset}], 16;", read_only_args=[shared, source]
    )


def _read(shared: Any, place: int) -> Any:
    return arch.inline_ptx(
        "ld.shared.v4.b32 { {$w0}, {$w1}, {$w2}, {$w3} }, [{$r0}+" + f"{place}];",
        write_only_types=[cutlass.Int32] * 4,
        read_only_args=[shared],
    )


def _mma(a: Any, b: Any, acc: Any, tile: int) -> Any:
    c = [acc[i, tile] for i in range(4)]
    code = (
        MMA + "{ {$w0}, {$w1}, {$w2}, {$w3} }, { {$r0}, {$r1}, {$r2}, {$r3} }, "
        "{ {$r4}, {$r5} }, { {$r6}, {$r7}, {$r8}, {$r9} };"
    )
    return arch.inline_ptx(code, write_only_types=[cutlass.Float32] * 4, read_only_args=[*a, *b, *c])


def _store(shared: Any, place: int, value: Any) -> None:
    arch.inline_ptx(f"st.shared.f32 [{{$r0}}+{place}], {{$r1}};", read_only_args=[shared, value])


def _load(shared: Any, place: int) -> Any:
    return arch.inline_ptx(
        f"ld.shared.f32 {{$w0}}, [{{$r0}}+{place}];", write_only_types=[cutlass.Float32], read_only_args=[shared]
    )


def _load_from(shared: Any, rank: int) -> Any:
    """From the same place of another block of the cluster."""
    there = arch.inline_ptx(
        f"mapa.shared::cluster.u32 {{$w0}}, {{$r0}}, {rank};",
        write_only_types=[cutlass.Int32],
        read_only_args=[shared],
    )
    return arch.inline_ptx(
        "ld.shared::cluster.f32 {$w0}, [{$r0}];", write_only_types=[cutlass.Float32], read_only_args=[there]
    )
