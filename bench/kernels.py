"""How long does each operator take, by whose hand? Plain torch, our Triton kernels and libraries at released sizes.

Owns the measurement behind docs/adr/0008. Each operator is recorded once and replayed (launch gaps do not count),
weights rotate among copies so that no cache holds them, and the median of the replays is taken. Prints a table with the
share of the memory or matrix floor that was reached, then one JSON line. `--sweep` tries other cuts of the kernels and
prints the best of each; what it finds goes into the constants of `foveate/ops/triton_*.py`.

    python bench/kernels.py [--sweep] [4b] [27b]
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.ops import (
    attention,
    conv,
    gated_delta,
    kernels,
    lanes,
    layers,
    pages,
    triton_attention,
    triton_chunks,
    triton_delta,
    triton_linear,
)
from foveate.ops.lanes import DeltaSizes, DeltaWeights, HeadSizes, Lanes, Norm, Runs
from foveate.ops.triton_linear import Tile

BF16, DEVICE, PAGE_LEN = torch.bfloat16, "cuda", 32
BYTES_S, FLOPS = 4.3e12, 790e12  # measured copies (read + write) and products of one H200
COPIES_BYTES = 300e6  # weights rotate within this much, several times the cache
Work = Callable[[], object]


@dataclass(frozen=True)
class Model:
    """The sizes of one released model."""

    name: str
    hidden: int
    inner: int
    heads: HeadSizes
    deltas: DeltaSizes


@dataclass(frozen=True)
class Case:
    """One operator at one size: what each hand does, and what it must at least move and multiply."""

    name: str
    hands: dict[str, Work]
    bytes: float
    flops: float = 0.0


MODELS = {
    "4b": Model("4b", 2560, 9216, HeadSizes(16, 4, 256, 1e-6), DeltaSizes(16, 128, 32, 128, 1e-6)),
    "27b": Model("27b", 5120, 17408, HeadSizes(24, 4, 256, 1e-6), DeltaSizes(16, 128, 48, 128, 1e-6)),
}


def random(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=torch.float32).mul_(0.5).to(dtype)


BROKEN: list[str] = []  # why; torch's allocator stays in the pool of a recording that broke off


def median_s(work: Work, repeats: int = 20) -> float:
    """Seconds of one call, from replays of a recording of it."""
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    graph, calls = torch.cuda.CUDAGraph(), 4

    def replay() -> None:
        for _ in range(calls):
            work()

    if not BROKEN:
        try:
            with torch.cuda.graph(graph):
                replay()
            replay = graph.replay
        except RuntimeError as error:  # what waits for the device cannot be recorded
            torch.cuda.synchronize()
            BROKEN.append(str(error))
            print("a recording broke off: from here on everything is launched one by one", file=sys.stderr)
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / calls)
    return statistics.median(times)


def small(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def lanes_of(lens: list[int], past_lens: list[int]) -> Lanes:
    """Sequences on pages in random order."""
    need = [-(-(past + length) // PAGE_LEN) for past, length in zip(past_lens, lens, strict=True)]
    order = torch.randperm(sum(need), dtype=torch.int32, device=DEVICE)
    table = torch.zeros(len(lens), max(need), dtype=torch.int32, device=DEVICE)
    at = 0
    for row, count in enumerate(need):
        table[row, :count] = order[at : at + count]
        at += count
    owner = torch.arange(len(lens), dtype=torch.int32, device=DEVICE).repeat_interleave(small(*lens))
    starts = small(*itertools.accumulate(lens, initial=0))
    slots = torch.arange(len(lens), dtype=torch.int32, device=DEVICE)
    return Lanes(starts, small(*past_lens), table, slots, owner, max(lens), PAGE_LEN)


def runs_of(at: Lanes, length: int, block_len: int, chunk_len: int) -> Runs:
    blocks = torch.tensor([(0, n) for n in range(0, length, block_len)][::-1], dtype=torch.int32, device=DEVICE)
    chunks = torch.tensor([(0, n) for n in range(0, length, chunk_len)], dtype=torch.int32, device=DEVICE)
    return Runs(at, blocks, chunks, small(0, len(chunks)))


def rotating(weights: list[Tensor], use: Callable[[Tensor], object]) -> Work:
    turn = itertools.cycle(weights)
    return lambda: use(next(turn))


def products(model: Model, rows: int) -> Iterator[Case]:
    """The matrices of a layer and the head, for a few rows: this is what decoding spends its time on."""
    d, h = model.deltas, model.heads
    width = h.heads * h.dim
    sides = {
        "into": (model.hidden, d.channels + d.value_heads * (d.value_dim + 2)),
        "qkvg": (model.hidden, 2 * (h.heads + h.kv_heads) * h.dim),
        "out": (width, model.hidden),
        "gate_up": (model.hidden, 2 * model.inner),
        "down": (model.inner, model.hidden),
        "head": (model.hidden, 248_320),
    }
    for name, (ins, outs) in sides.items():
        copies = max(2, int(COPIES_BYTES / (2 * ins * outs)))
        turned = [random(outs, ins).T for _ in range(copies)]
        flat = [weight.contiguous() for weight in turned]
        x, norm, target = random(rows, ins), Norm(random(ins, dtype=torch.float32), 1e-6), random(rows, outs)
        ours: Callable[[Tensor], object]
        if name in ("out", "down"):
            ours = lambda w, t=target, x=x: triton_linear.add_projected(t, x, w)  # noqa: E731
            theirs: Callable[[Tensor], object] = lambda w, t=target, x=x: t.addmm_(x, w)  # noqa: E731
        elif name == "gate_up":
            ours = lambda w, x=x, n=norm: triton_linear.project_gated(x, w, n)  # noqa: E731
            theirs = lambda w, x=x, n=norm: layers.swiglu(layers.rms_norm(x, n.scale, n.eps), w)  # noqa: E731
        else:
            ours = lambda w, x=x, n=norm: triton_linear.project(x, w, n)  # noqa: E731
            theirs = lambda w, x=x, n=norm: layers.rms_norm(x, n.scale, n.eps) @ w  # noqa: E731
        hands = {"triton": rotating(turned, ours), "torch, turned": rotating(turned, theirs)}
        yield Case(f"{name} x{rows}", hands | {"torch": rotating(flat, theirs)}, 2.0 * ins * outs)
        del turned, flat


def decoding(model: Model, count: int, past_len: int) -> Iterator[Case]:
    """What a layer does beside its matrices, for `count` sequences of one new token."""
    at, h, d, ours, plain = lanes_of([1] * count, [past_len] * count), model.heads, model.deltas, *makes()
    memory = (random(int(at.pages.max()) + 1, PAGE_LEN, h.kv_heads, h.dim),) * 2
    query, gate, out = random(count, h.heads, h.dim), random(count, h.heads * h.dim), random(count, h.heads * h.dim)
    layout = pages.lay_out(at.pages.long(), (past_len,) * count, (1,) * count, PAGE_LEN)
    tag, read = f"x{count} past {past_len}", 4.0 * count * past_len * h.kv_heads * h.dim
    hands: dict[str, Work] = {
        "triton": lambda: ours.attend(query, gate, memory, at, out),
        "torch": lambda: attention.attend_paged(query, *memory, layout),
    }
    yield Case(f"attend {tag}", hands, read)
    columns, rope = random(count, 2 * (h.heads + h.kv_heads) * h.dim), (random(count, 1, 32, dtype=torch.float32),) * 2
    scale = random(h.heads + h.kv_heads, h.dim, dtype=torch.float32)
    both = {make.name: lambda make=make: make.place(columns, scale, rope, memory, at, h) for make in (ours, plain)}
    yield Case(f"place {tag}", both, 2.0 * columns.numel())
    mixed, convolved, weights, state, carried = delta_parts(model, count, count)
    result = random(count, d.value_heads * d.value_dim)
    x = mixed[:, : d.channels]
    both = {m.name: lambda m=m: m.convolve(x, weights.conv, carried, at, convolved) for m in (ours, plain)}
    yield Case(f"convolve x{count}", both, 2.0 * carried.numel() * 2)
    both = {m.name: lambda m=m: m.delta(mixed, convolved, weights, state, at, result) for m in (ours, plain)}
    yield Case(f"delta x{count}", both, 8.0 * state.numel())


def makes() -> tuple[kernels.Kernels, kernels.Kernels]:
    return kernels.triton_kernels(), kernels.torch_kernels()


def delta_parts(model: Model, tokens: int, slots: int) -> tuple[Tensor, Tensor, DeltaWeights, Tensor, Tensor]:
    d = model.deltas
    f32 = torch.float32
    rate, bias, norm = -random(d.value_heads, dtype=f32).abs(), random(d.value_heads, dtype=f32), random(128, dtype=f32)
    weights = DeltaWeights(random(4, d.channels), rate, bias, norm, d)
    mixed = random(tokens, d.channels + d.value_heads * (d.value_dim + 2))
    state = random(slots, d.value_heads, d.key_dim, d.value_dim, dtype=f32)
    return mixed, random(tokens, d.channels), weights, state, random(slots, 3, d.channels)


def prefilling(model: Model, length: int, past_len: int) -> Iterator[Case]:
    """What a layer does beside its matrices, for one run of many tokens."""
    make, _ = makes()
    assert make.runs is not None
    at, h, d, own = lanes_of([length], [past_len]), model.heads, model.deltas, make.runs
    runs = runs_of(at, length, own.block_len, own.chunk_len)
    memory = (random(at.pages.shape[1], PAGE_LEN, h.kv_heads, h.dim),) * 2
    query, gate, out = random(length, h.heads, h.dim), random(length, h.heads * h.dim), random(length, h.heads * h.dim)
    layout = pages.lay_out(at.pages.long(), (past_len,), (length,), PAGE_LEN)
    seen, tag = past_len + length / 2, f"{length} past {past_len}"
    hands: dict[str, Work] = {
        "triton": lambda: own.attend(query, gate, memory, runs, out),
        "torch": lambda: attention.attend_paged(query, *memory, layout),
    }
    if varlen := varlen_hand(query, memory, at, length, past_len):
        hands["varlen_attn"] = varlen
    yield Case(f"attend {tag}", hands, 2.0 * query.numel() * 2, 4.0 * length * seen * h.heads * h.dim)
    mixed, convolved, weights, state, carried = delta_parts(model, length, 1)
    x, result, slots = mixed[:, : d.channels], random(length, d.value_heads * d.value_dim), at.slots.long()
    hands = {
        "triton": lambda: own.convolve(x, weights.conv, carried, runs, convolved),
        "torch": lambda: conv.causal_conv(x, weights.conv, carried, slots, (length,)),
    }
    yield Case(f"convolve {tag}", hands, 4.0 * length * d.channels)
    plan = gated_delta.plan_chunks((length,), torch.device(DEVICE))
    inputs = lanes.delta_inputs(mixed, convolved, weights)
    hands = {
        "triton": lambda: own.delta(mixed, convolved, weights, state, runs, result),
        "torch, the rule alone": lambda: gated_delta.delta_runs(inputs, state, slots, plan),
    }
    flops = 2.0 * length * d.value_heads * (3 * 64 * 128 + 3 * 128 * 128)
    yield Case(f"delta {tag}", hands, 4.0 * length * d.channels, flops)


def varlen_hand(query: Tensor, memory: tuple[Tensor, Tensor], at: Lanes, length: int, past_len: int) -> Work | None:
    """torch's own flash attention behind a gathering of the pages; None where it does not take these heads."""
    from torch.nn.attention import varlen

    cu_q, cu_k, seen = small(0, length), small(0, past_len + length), past_len + length
    repeat = query.shape[1] // memory[0].shape[2]

    def work() -> object:
        key, value = (pages.gather_pages(paged, at.pages[0].long(), seen) for paged in memory)
        keys, values = (x.repeat_interleave(repeat, 1) for x in (key, value))
        try:
            return varlen.varlen_attn(query, keys, values, cu_q, cu_k, length, seen, is_causal=True)
        except TypeError:  # the keyword was replaced by a window
            return varlen.varlen_attn(query, keys, values, cu_q, cu_k, length, seen, window_size=(-1, 0))

    try:
        work()
    except RuntimeError as error:
        print(f"varlen_attn: {str(error)[:160]}")
        return None
    return work


def cases(model: Model) -> Iterator[Case]:
    for rows in (1, 4, 8, 16):
        yield from products(model, rows)
    for count, past_len in ((1, 1000), (1, 8192), (8, 1000), (8, 8192)):
        yield from decoding(model, count, past_len)
    for length, past_len in ((513, 0), (513, 7700), (8192, 0)):
        yield from prefilling(model, length, past_len)


def measure(model: Model) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for case in cases(model):
        floor_s = max(case.bytes / BYTES_S, case.flops / FLOPS)
        for hand, work in case.hands.items():
            try:
                took_s = median_s(work)
            except Exception as error:  # one kernel that fails must not cost the lease the rest of the table
                print(f"{model.name:4} {case.name:24} {hand:22} failed: {str(error)[:160]}")
                continue
            share = f"{floor_s / took_s:6.0%} of the floor"
            print(f"{model.name:4} {case.name:24} {hand:22} {took_s * 1e6:10.1f} us {share}")
            rows.append({"model": model.name, "op": case.name, "by": hand, "us": round(took_s * 1e6, 2)})
    return rows


TILES = [
    Tile(outs, ins, warps, 3)
    for outs, ins, warps in itertools.product((4, 8, 16, 32), (256, 512, 1024, 2048), (4, 8))
    if 2048 <= outs * ins <= 16384
]
FEW_TILES = [Tile(*cut) for cut in itertools.product((16, 32, 64), (64, 128, 256), (4,), (3, 5))]
# (module, names of its constants, values to try, sizes to try them on)
CUTS = [
    (triton_attention, ("BLOCK_LEN", "FEW_WARPS", "FEW_STAGES"),
     [(64, 4, 2), (32, 4, 3), (64, 8, 2), (128, 8, 2)], "attend x"),
    (triton_attention, ("MANY_WARPS", "MANY_STAGES"), [(8, 2), (8, 3), (4, 2)], "attend 8192"),
    (triton_delta, ("DELTA_WARPS",), [(4,), (8,), (16,)], "delta x"),
    (triton_chunks, ("VALUE_BLOCK", "SCAN_WARPS", "SCAN_STAGES"),
     [(32, 4, 2), (16, 4, 2), (64, 4, 2), (32, 4, 3), (32, 2, 2), (64, 8, 2)], "delta 8192"),
    (triton_chunks, ("PREPARE_WARPS", "OUTPUT_WARPS"), [(4, 4), (8, 4), (4, 8), (8, 8)], "delta 8192"),
]  # fmt: skip


def sweep(model: Model) -> list[dict[str, object]]:
    """The best cut of each product and of each kernel's constants."""
    rows: list[dict[str, object]] = []
    original = triton_linear.tile_for
    for count, tiles in ((1, TILES), (8, FEW_TILES)):
        for case in products(model, count):
            found = []
            for tile in tiles:
                setattr(triton_linear, "tile_for", lambda *sizes, tile=tile: tile)  # noqa: B010
                found.append((tried_s(case.hands["triton"]), tile))
            setattr(triton_linear, "tile_for", original)  # noqa: B010
            found.sort(key=lambda pair: pair[0])
            rows.append(best_of(model, case.name, [(took_s, str(tile)) for took_s, tile in found]))
    for module, names, values, wanted in CUTS:
        before = tuple(getattr(module, name) for name in names)
        for case in cases_named(model, wanted):
            found_cuts = []
            for value in values:
                set_all(module, names, value)
                found_cuts.append((tried_s(case.hands["triton"]), f"{names} = {value}"))
            set_all(module, names, before)
            rows.append(best_of(model, case.name, sorted(found_cuts)))
    return rows


def cases_named(model: Model, start: str) -> Iterator[Case]:
    made = itertools.chain(*(decoding(model, *sizes) for sizes in ((1, 1000), (8, 8192))), prefilling(model, 8192, 0))
    return (case for case in made if case.name.startswith(start))


def tried_s(work: Work) -> float:
    try:
        return median_s(work, 5)
    except Exception:  # a cut that does not fit the device
        return float("inf")


def set_all(module: object, names: tuple[str, ...], values: tuple[int, ...]) -> None:
    for name, value in zip(names, values, strict=True):
        setattr(module, name, value)


def best_of(model: Model, name: str, found: list[tuple[float, str]]) -> dict[str, object]:
    shown = ", ".join(f"{cut} {took_s * 1e6:.1f}" for took_s, cut in found[:3])
    print(f"{model.name:4} {name:24} {shown}")
    return {"model": model.name, "op": name, "best": found[0][1], "us": round(found[0][0] * 1e6, 2)}


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("kernels are timed on a CUDA device, and there is none")
    torch.manual_seed(0)
    named = [word for word in sys.argv[1:] if word in MODELS] or list(MODELS)
    take = sweep if "--sweep" in sys.argv else measure
    with torch.inference_mode():
        rows = [row for name in named for row in take(MODELS[name])]
    print(json.dumps({"bench": "kernels", "device": torch.cuda.get_device_name(), "rows": rows}))


if __name__ == "__main__":
    main()
