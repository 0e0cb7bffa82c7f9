"""Kernels at the sizes of released models, recorded steps against unrecorded ones, whole engines against the CPU's.

Small sizes of every kernel are in `tests/ops`, which run on a GPU too where there is one.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.support.interpreter import close  # isort: skip - before any kernel
from foveate.core.config import Settings
from foveate.core.values import Ending, Sampling
from foveate.models.interface import Memory
from foveate.models.qwen3_5 import Qwen35
from foveate.models.qwen3_5_device import Qwen35OnDevice, turn_matrices
from foveate.models.registry import load_text, load_vision
from foveate.run.cache import allocate
from foveate.run.embeds import RowStore
from foveate.run.runner import Runner
from foveate.sched.speculate import DraftLimits
from tests.spec.guessing import Knowing
from tests.spec.test_verify_pass import near
from tests.support.engines import answer_of, png, request, serving
from tests.support.harness import Drive, late, make_job, tiny
from tests.support.invariants import alone

pytest.importorskip("triton")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

from foveate.ops import lanes, triton_attention, triton_chunks, triton_delta, triton_linear, triton_rows  # noqa: E402
from foveate.ops.gated_delta import delta_reference  # noqa: E402
from foveate.ops.kernels import triton_kernels  # noqa: E402
from foveate.ops.lanes import DeltaSizes, HeadSizes, Norm  # noqa: E402
from foveate.ops.layers import gated_rms_norm, rms_norm  # noqa: E402
from foveate.run.ahead import Ahead  # noqa: E402
from foveate.run.graphs import EvenSteps, Spare  # noqa: E402
from tests.ops import test_triton_attention as attention  # noqa: E402
from tests.ops import test_triton_chunks as chunks  # noqa: E402
from tests.ops.test_triton_delta import made_inputs, made_weights  # noqa: E402
from tests.ops.test_triton_rows import drawn, made_lanes  # noqa: E402
from tests.run.test_graph_step import CAPTURE, PAGES, SLOTS, fresh, mixed, piece, tokens  # noqa: E402

BF16, ROUNDING = torch.bfloat16, 8e-3
HEADS = [HeadSizes(16, 4, 256, 1e-6), HeadSizes(24, 4, 256, 1e-6)]  # 4B, 27B
DELTAS = [DeltaSizes(16, 128, 32, 128, 1e-6), DeltaSizes(16, 128, 48, 128, 1e-6)]


@pytest.mark.parametrize("sizes", HEADS)
@pytest.mark.parametrize(
    ("lens", "past_lens"), [([1], [8191]), ([1] * 8, [0, 31, 32, 513, 1000, 2047, 4096, 5003]), ([5] * 3, [0, 700, 3])]
)
def test_few_queries(lens: list[int], past_lens: list[int], sizes: HeadSizes) -> None:
    at, count, width = made_lanes(lens, past_lens, 32), sum(lens), sizes.heads * sizes.dim
    query, gate = drawn(count, sizes.heads, sizes.dim, dtype=BF16), drawn(count, width, dtype=BF16, seed=1)
    memory, out = attention.memory_of(at, BF16, sizes.kv_heads, sizes.dim), torch.full_like(gate, float("nan"))
    triton_attention.attend(query, gate, memory, at, out)
    close(out, attention.written_out(query, gate, memory, at), ROUNDING)


@pytest.mark.parametrize("sizes", HEADS)
@pytest.mark.parametrize(("lens", "past_lens"), [([2000], [0]), ([513, 40, 300], [1024, 0, 77])])
def test_many_queries(lens: list[int], past_lens: list[int], sizes: HeadSizes) -> None:
    at, count, width = made_lanes(lens, past_lens, 32), sum(lens), sizes.heads * sizes.dim
    query, gate = drawn(count, sizes.heads, sizes.dim, dtype=BF16), drawn(count, width, dtype=BF16, seed=1)
    memory, out = attention.memory_of(at, BF16, sizes.kv_heads, sizes.dim), torch.full_like(gate, float("nan"))
    triton_attention.attend_runs(query, gate, memory, attention.runs_of(at), out)
    close(out, attention.written_out(query, gate, memory, at), ROUNDING)


@pytest.mark.parametrize("sizes", HEADS)
@pytest.mark.parametrize("lens", [[1] * 5, [700]])
def test_place(lens: list[int], sizes: HeadSizes) -> None:
    at, count = made_lanes(lens, [33] * len(lens), 32), sum(lens)
    columns = drawn(count, 2 * (sizes.heads + sizes.kv_heads) * sizes.dim, dtype=BF16)
    angles, scale = drawn(count, 1, 32, seed=2), drawn(sizes.heads + sizes.kv_heads, sizes.dim, seed=1)
    shape = (int(at.pages.max()) + 1, 32, sizes.kv_heads, sizes.dim)
    first, second, third, fourth = (torch.zeros(shape, dtype=BF16, device="cuda") for _ in range(4))
    memories = [(first, second), (third, fourth)]
    rope = (angles.cos(), angles.sin())
    want = lanes.place(columns, scale, rope, memories[0], at, sizes)
    close(triton_rows.place(columns, scale, rope, memories[1], at, sizes), want, ROUNDING)
    for got, kept in zip(memories[1], memories[0], strict=True):
        close(got, kept, ROUNDING)


@pytest.mark.parametrize("sizes", DELTAS)
@pytest.mark.parametrize("lens", [[1], [1] * 8, [5] * 3])
def test_delta_of_few(lens: list[int], sizes: DeltaSizes) -> None:
    at, weights = made_lanes(lens, [4] * len(lens), 32), made_weights(sizes, BF16)
    projected, convolved = made_inputs(sum(lens), sizes, BF16)
    states = [drawn(20, sizes.value_heads, 128, 128, seed=2) for _ in "gw"]
    outs = [torch.empty(sum(lens), sizes.value_heads * 128, dtype=BF16, device="cuda") for _ in "gw"]
    triton_delta.delta(projected, convolved, weights, states[0], at, outs[0])
    lanes.delta(projected, convolved, weights, states[1], at, outs[1])
    close(outs[0], outs[1], ROUNDING)
    close(states[0], states[1], 1e-5)


@pytest.mark.parametrize("sizes", DELTAS)
@pytest.mark.parametrize(("lens", "past_lens"), [([1000], [0]), ([64, 300, 3], [9, 0, 1])])
def test_delta_of_many(lens: list[int], past_lens: list[int], sizes: DeltaSizes) -> None:
    at, weights = made_lanes(lens, past_lens, 32), made_weights(sizes, BF16)
    projected, convolved = made_inputs(sum(lens), sizes, BF16)
    state, before = (drawn(20, sizes.value_heads, 128, 128, seed=2) for _ in "gw")
    out = torch.empty(sum(lens), sizes.value_heads * 128, dtype=BF16, device="cuda")
    triton_chunks.delta_runs(projected, convolved, weights, state, chunks.runs_of(at), out)
    rest = lanes.delta_inputs(projected.float(), convolved.float(), weights)
    gate = projected[:, sizes.channels :][:, : out.shape[1]].float().unflatten(1, (sizes.value_heads, -1))
    start = 0
    for lane, slot in enumerate(at.slots.tolist()):
        inputs, rest = rest.split(lens[lane])
        want, after = delta_reference(inputs, before[slot] * bool(past_lens[lane]))
        end = start + lens[lane]
        close(out[start:end], gated_rms_norm(want, gate[start:end], weights.norm, sizes.eps).flatten(1), 2e-2)
        close(state[slot], after, 1e-2)
        start = end


@pytest.mark.parametrize(("ins", "outs"), [(2560, 12352), (9216, 2560), (5120, 34816), (2560, 248320)])
@pytest.mark.parametrize("rows", [1, 2, 8, 16])
def test_products_of_few_rows(rows: int, ins: int, outs: int) -> None:
    x, weight = drawn(rows, ins, dtype=BF16), drawn(outs, ins, dtype=BF16, seed=1).T
    norm = Norm(drawn(ins, seed=2), 1e-6)
    wide = rms_norm(x.float(), norm.scale, norm.eps)
    close(triton_linear.project(x, weight, norm), wide @ weight.float(), ROUNDING)
    gate, up = (wide @ weight.float()).chunk(2, -1)
    close(triton_linear.project_gated(x, weight, norm), torch.nn.functional.silu(gate) * up, ROUNDING)
    target = drawn(rows, outs, dtype=BF16, seed=3)
    sums = target.float() + x.float() @ weight.float()
    triton_linear.add_projected(target, x, weight)
    close(target, sums, ROUNDING)


def on_device(kind: str) -> Qwen35OnDevice:
    model = load_text(tiny(kind)[2], "cuda:0", torch.float32)
    assert isinstance(model, Qwen35)
    turn_matrices(model.trunk)
    return Qwen35OnDevice(model.config, model.trunk, triton_kernels())


@pytest.mark.parametrize("kind", ["dense", "dense_tied", "moe"])
def test_recorded_steps_equal_unrecorded_ones(kind: str) -> None:
    """Also of several shapes in turn, whose recordings share memory."""
    rng, model, memories = random.Random(5), on_device(kind), []
    start = fresh(kind)
    lens = [9, 4, 14]
    mixed(kind, start, [piece(n, 0, tokens(rng, length), draw=None) for n, length in enumerate(lens)])
    for _ in range(2):
        parts = ({n: t.cuda() for n, t in part.items()} for part in (start.paged, start.state))
        memories.append(Memory(*parts, start.page_len))
    spare = Spare(PAGES, SLOTS)
    steps = [EvenSteps(model, memories[i], spare, "cuda:0", 4, 30, record=i == 0) for i in range(2)]
    steps[0].prepare(CAPTURE)
    for turn in range(6):
        drafts = [0, 0, 0] if turn % 2 else [rng.randint(0, 3) for _ in lens]
        taken = [piece(n, lens[n], tokens(rng, 1 + drafts[n]), drafts[n]) for n in range(3 - turn // 4)]
        paths = [range(1 + rng.randint(0, d)) for d in drafts[: len(taken)] if d]
        (a, look), (b, other) = (even.run(taken, CAPTURE) for even in steps)
        assert near([a.logits, a.features, a.final], [b.logits, b.features, b.final]) < 1e-6
        assert look() == other()
        for forward in (a, b):
            if forward.pending is not None:
                forward.pending.commit(paths)
        stands = iter(paths)
        for n in range(len(taken)):
            lens[n] += len(next(stands)) if drafts[n] else 1
        states = ([t[:SLOTS].nan_to_num() for t in m.state.values()] for m in memories)
        assert near(*states) < 1e-6


class DeviceDrive(Drive):
    """The synchronous engine with kernels and recordings, in float32."""

    def __init__(self, kind: str = "dense", **change: Any) -> None:
        super().__init__(kind, **change)
        model, limits, drafter = on_device(kind), self.limits, self.runner.drafter
        self.tower = load_vision(tiny(kind)[2], "cuda:0", torch.float32)
        memory = allocate(model.memory_spec(), limits.pages + 1, limits.page_len, limits.slots + 1, "cuda:0")
        for tensor in (*memory.paged.values(), *memory.state.values()):
            tensor.fill_(float("nan"))
        self.runner = Runner(model, memory, RowStore("cuda:0", torch.float32), "cuda:0", drafter)
        most_pages = -(-limits.max_ctx // limits.page_len)
        spare = Spare(limits.pages, limits.slots)
        self.runner.even = EvenSteps(model, memory, spare, "cuda:0", limits.slots, most_pages, record=True)
        self.runner.ahead = Ahead(self.runner.even)


@pytest.mark.parametrize("kind", ["dense", "dense_tied", "moe"])
def test_tokens_equal_those_of_the_cpu(kind: str) -> None:
    jobs = [make_job(100 + i, i % 5, 30, sampling=Sampling(temperature=0.8 * (i % 2), seed=i)) for i in range(8)]
    want = [outcome.tokens for outcome in Drive(kind).run(jobs)]
    assert [outcome.tokens for outcome in DeviceDrive(kind).run(jobs)] == want
    few = {"landing": late(1), "step_tokens": 24, "mixed_tokens": 16}
    assert [outcome.tokens for outcome in DeviceDrive(kind, **few).run(jobs)] == want


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_speculation_changes_nothing(tree: bool) -> None:
    jobs = [make_job(400 + i, i % 2, 15, ending=Ending(20)) for i in range(5)]
    want = alone(jobs, "dense")
    drafts = DraftLimits(draft_len=6, adaptive=False, tree=24 if tree else 0)
    outcomes = DeviceDrive(drafter=Knowing(want, tree=tree), drafts=drafts).run(jobs)
    assert [outcome.tokens for outcome in outcomes] == want
    assert sum(sum(outcome.timings.accepted) for outcome in outcomes) > 20


@pytest.mark.parametrize(
    "change", [{"kernels": "triton"}, {"kernels": "triton", "graphs": False}, {}, {"draft": "none"}]
)
async def test_settings_choose_the_way_and_not_the_answer(change: dict[str, Any]) -> None:
    folder, asked = tiny("dense")[2], [request(f"question {i}", png(i)) for i in range(3)]
    common: dict[str, Any] = {"dtype": "float32", "max_ctx": 512, "kv_tokens": 4096}
    async with serving(folder, device="cpu", mmproj_device="same", **common) as service:
        want = [(await answer_of(service, one))[0] for one in asked]
    async with serving(folder, device="cuda:0", **common, **change) as service:
        assert service.engine.config.kernels == Settings(**change).kernels.replace("auto", "torch")
        assert [(await answer_of(service, one))[0] for one in asked] == want
