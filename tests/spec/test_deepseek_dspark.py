"""DeepSeek V4's DSpark: equal to its formulas, in pieces as whole, behind images, and changing no answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from foveate.core.config import Settings
from foveate.core.errors import CheckpointError
from foveate.core.values import Ending
from foveate.models import deepseek_v4_dspark
from foveate.models.deepseek_v4 import DeepseekV4
from foveate.models.deepseek_v4_config import v4_config
from foveate.models.deepseek_v4_draft_weights import load_spark, spark_shapes, v4_draft_kind
from foveate.models.deepseek_v4_dspark import SparkConfig, SparkDrafter
from foveate.models.deepseek_v4_step import Trial
from foveate.models.drafting import Asked, Seen
from foveate.models.interface import Memory
from foveate.models.weights import Place
from foveate.run.cache import allocate, joined
from foveate.run.draft import ModelDrafter
from foveate.run.drafters import find_drafter
from foveate.sched.speculate import DraftLimits
from tests.models.v4_bench import Bench
from tests.models.v4_release import RELEASE
from tests.spec.v4_draft_naive import Drafting, spark
from tests.support.harness import Drive, Job, Outcome, late, tiny
from tests.support.invariants import alone
from tests.support.tiny_v4 import VOCAB, make_tiny_v4
from tests.support.tiny_v4_draft import BLOCK, INDEX, make_tiny_drafting
from tests.support.v4_jobs import FIRST, PLACEHOLDER, Square, make_v4_job, v4_job

PLACE = Place(torch.device("cpu"), torch.float32)
PAGES = torch.zeros(1, 1, dtype=torch.int64)  # a drafter of this family has none


@cache
def folder_of(kind: str, drafter: str = "dspark") -> Path:
    """A checkpoint with a random drafter."""
    return make_tiny_drafting(Path(mkdtemp(prefix="foveate-tiny-")), kind, drafter)


def drafter_of(kind: str, folder: Path | None = None) -> SparkDrafter:
    model = tiny(kind)[0]
    assert isinstance(model, DeepseekV4)
    return load_spark(folder or folder_of(kind), model, PLACE)


def blank(drafter: SparkDrafter, slots: int = 4) -> Memory:
    """Memory in which a read of what was never written shows."""
    memory = allocate(drafter.memory_spec(), 1, 4, slots, "cpu")
    for tensor in memory.state.values():
        tensor.fill_(float("nan"))
    return memory


def seen_of(parts: list[tuple[int, int, list[int], Tensor]]) -> Seen:
    """Sequences as (slot, past_len, ids, features) that one step made stand."""
    lens = tuple(len(ids) for _, _, ids, _ in parts)
    return Seen(
        ids=torch.tensor([token for _, _, ids, _ in parts for token in ids]),
        positions=torch.zeros(1, sum(lens), dtype=torch.int64),
        past_lens=tuple(past_len for _, past_len, _, _ in parts),
        lens=lens,
        pages=PAGES.expand(len(parts), 1),
        slots=torch.tensor([slot for slot, _, _, _ in parts]),
        features=torch.cat([features for _, _, _, features in parts]),
        final=None,
    )


def asked_of(anchors: list[int], past_lens: list[int], slots: list[int], draft_len: int = BLOCK) -> Asked:
    count = len(anchors)
    positions = torch.zeros(1, count, draft_len + 1, dtype=torch.int64)
    where = (tuple(past_lens), positions, PAGES.expand(count, 1), torch.tensor(slots))
    return Asked(torch.tensor(anchors), *where, draft_len)


def argmax(logits: Tensor, depth: int) -> Tensor:
    return logits.argmax(-1)


def agree(drafter: SparkDrafter, memory: Memory, asked: Asked, want: list[tuple[Tensor, int]], folder: Path) -> None:
    """The guesses are those of the formulas behind (features, tail)."""
    states, guesses = drafter.block_states(asked, memory), drafter.propose(asked, memory, argmax)
    assert guesses.known is not None and guesses.known.all()
    reference = Drafting.of(folder)
    for row, (features, tail) in enumerate(want):
        said = spark(reference, features, int(asked.anchors[row]), tail, drafter.config.block)
        assert (states[row] - said.states).abs().max() < 1e-5
        assert guesses.tokens[row].tolist() == said.tokens[: asked.draft_len]
        assert (guesses.confidence[row] - said.sure[: asked.draft_len]).abs().max() < 1e-5
        best = said.logits.log_softmax(-1).topk(guesses.ids.shape[-1])
        assert (guesses.logprobs[row] - best.values[: asked.draft_len]).abs().max() < 1e-4
        assert torch.equal(guesses.ids[row], best.indices[: asked.draft_len])


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", ["v4", "v4_official", "v4_wide", "v4_vision"])
def test_a_block_is_what_the_formulas_say(kind: str, seed: int) -> None:
    drafter, random = drafter_of(kind), torch.Generator().manual_seed(seed)
    wide = 2 * drafter._target.hidden_size
    lens = [1, 7, 31, 12]  # less than the window, more, and around it
    features = [torch.randn(n, wide, generator=random) for n in lens]
    memory, slots = blank(drafter), torch.randperm(4, generator=random).tolist()
    ids = [torch.randint(FIRST, VOCAB, (n,), generator=random).tolist() for n in lens]
    drafter.observe(seen_of([(slot, 0, i, f) for slot, i, f in zip(slots, ids, features, strict=True)]), memory)
    anchors = torch.randint(FIRST, VOCAB, (4,), generator=random).tolist()
    agree(drafter, memory, asked_of(anchors, lens, slots), [(f, 0) for f in features], folder_of(kind))
    agree(drafter, memory, asked_of(anchors, lens, slots, 2), [(f, 0) for f in features], folder_of(kind))


@pytest.mark.parametrize("size", [1, 2, 3, 8, 11])
def test_context_in_pieces_is_the_context(size: int) -> None:
    """Two sequences grow in unequal pieces, one of them in a slot that another left."""
    drafter, random = drafter_of("v4"), torch.Generator().manual_seed(size)
    features = [torch.randn(n, 128, generator=random) for n in (29, 17)]
    ids = [[20] * 29, [30] * 17]
    whole, pieces = blank(drafter), blank(drafter)
    drafter.observe(seen_of([(2, 0, ids[0], features[0]), (0, 0, ids[1], features[1])]), whole)
    drafter.observe(seen_of([(2, 0, [VOCAB + 2] * 9, torch.randn(9, 128))]), pieces)  # somebody with an image was here
    done = [0, 0]
    while done != [29, 17]:
        parts = []
        for row, (slot, step) in enumerate(((2, size), (0, size + 2))):
            last = min(done[row] + step, len(ids[row]))
            if done[row] < last:
                parts.append((slot, done[row], ids[row][done[row] : last], features[row][done[row] : last]))
                done[row] = last
        drafter.observe(seen_of(parts), pieces)
    asked = asked_of([50, 60], [29, 17], [2, 0])
    one, two = (drafter.block_states(asked, memory) for memory in (whole, pieces))
    assert (one - two).abs().max() < 2e-5  # of values up to 6; products of other heights round differently
    agree(drafter, pieces, asked, [(features[0], 0), (features[1], 0)], folder_of("v4"))


@pytest.mark.parametrize("cut", [3, 9, 10, 15, 40])
def test_the_context_is_the_run_behind_the_last_image(cut: int) -> None:
    """Wherever pieces are cut: what an image ends is not seen, what stands behind it is."""
    drafter, random = drafter_of("v4_vision"), torch.Generator().manual_seed(cut)
    ids = [20] * 4 + [VOCAB + kind for kind in (1, 0, 2, 2, 3, 3, 4)] + [21] * 2 + [VOCAB, VOCAB + 4] + [22] * 4
    features = torch.randn(len(ids), 128, generator=random)
    memory = blank(drafter)
    for start in range(0, len(ids), cut):
        part = slice(start, start + cut)
        drafter.observe(seen_of([(1, start, ids[part], features[part])]), memory)
    agree(drafter, memory, asked_of([33], [len(ids)], [1]), [(features, 15)], folder_of("v4_vision"))


def test_nothing_is_guessed_where_an_image_came_last() -> None:
    drafter = drafter_of("v4_vision")
    memory = blank(drafter)
    image, text = [20, 21, VOCAB, VOCAB + 2, VOCAB + 4], [20, 21, 22]
    parts = [(0, 0, image, torch.randn(5, 128)), (3, 0, text, torch.randn(3, 128))]
    drafter.observe(seen_of(parts), memory)
    asked = asked_of([40, 41], [5, 3], [0, 3])
    guesses = drafter.propose(asked, memory, argmax)
    assert guesses.known is not None and guesses.known.tolist() == [False, True]
    assert guesses.logprobs[1].isfinite().all()
    drafter.observe(seen_of([(0, 5, [40], torch.randn(1, 128))]), memory)
    after = drafter.propose(asked_of([42], [6], [0]), memory, argmax)
    assert after.known is not None and after.known.tolist() == [True], "one token behind the image is a context"


@pytest.mark.parametrize("kind", ["v4", "v4_official"])
def test_features_are_means_over_streams_behind_the_layers(kind: str) -> None:
    import transformers

    drafter = drafter_of(kind)
    model = drafter._target
    reference = transformers.DeepseekV4ForCausalLM.from_pretrained(tiny(kind)[2], dtype=torch.float32).eval()
    found: dict[int, Tensor] = {}
    for i in drafter.capture.layers:
        reference.model.layers[i].register_forward_hook(lambda m, a, out, i=i: found.__setitem__(i, out))
    ids = torch.randint(FIRST, VOCAB, (21,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.no_grad():
        reference(input_ids=torch.tensor([ids]), use_cache=False)
    bench = Bench(model)
    forward = bench.run((bench.begin(ids), ids, False), capture=drafter.capture)
    want = torch.cat([found[i][0].mean(-2) for i in drafter.capture.layers], -1)
    assert forward.features is not None and (forward.features - want).abs().max() < 1e-5


@pytest.mark.parametrize("standing", range(1, BLOCK + 2))
@pytest.mark.parametrize("prompt_len", [3, 10, 22])
def test_rejection_at_every_position_leaves_no_trace(standing: int, prompt_len: int) -> None:
    """A verified chain of which `standing` tokens stand leaves the target and the drafter as if only they had run."""
    drafter, random = drafter_of("v4"), torch.Generator().manual_seed(prompt_len)
    ids = torch.randint(FIRST, VOCAB, (prompt_len + BLOCK + 1,), generator=random).tolist()
    tried, plain = Bench(drafter._target, seed=1), Bench(drafter._target, seed=1)
    spec = joined(drafter._target.memory_spec(), drafter.memory_spec())
    memories = []
    for bench in (tried, plain):
        bench.memory = allocate(spec, bench.pages, bench.page_len, bench.slots, "cpu")
        for tensor in (*bench.memory.paged.values(), *bench.memory.state.values()):
            tensor.fill_(float("nan"))
        memories.append(bench.memory)
    steps = ((tried, prompt_len, False), (tried, BLOCK + 1, True), (plain, prompt_len, False), (plain, standing, False))
    sequences = {id(bench): bench.begin(ids) for bench in (tried, plain)}
    for bench, count, verify in steps:
        sequence = sequences[id(bench)]
        begin = sequence.past_len
        tokens = ids[begin : begin + count]
        forward = bench.run((sequence, tokens, verify), capture=drafter.capture)
        kept = standing if verify else count
        if verify:
            assert forward.pending is not None
            forward.pending.commit([list(range(standing))])
            sequence.past_len += standing
        assert forward.features is not None
        drafter.observe(seen_of([(sequence.slot, begin, tokens[:kept], forward.features[:kept])]), bench.memory)
    for name, tensor in memories[0].state.items():
        torch.testing.assert_close(tensor, memories[1].state[name], atol=1e-5, rtol=1e-5, equal_nan=True, msg=name)
    slot = sequences[id(tried)].slot
    asked = asked_of([ids[prompt_len + standing - 1]], [prompt_len + standing], [slot])
    one, two = (drafter.block_states(asked, memory) for memory in memories)
    assert (one - two).abs().max() < 1e-5


def tails_never_move(seen: Seen, tails: Tensor, vocab: int) -> None:
    tails.index_fill_(0, seen.slots, 0)


def everything_stands(self: Trial, paths: object) -> None:
    taken = [range(len(stretch)) for stretch in self.begun]
    COMMIT(self, taken)


def context_is_a_row_short(asked: Asked, memory: Memory, window: int, back: int = 0) -> object:
    return CONTEXT(asked, memory, window, 1)


COMMIT, CONTEXT = Trial.commit, deepseek_v4_dspark.context_of
FAULTS = [
    (deepseek_v4_dspark, "note_tails", tails_never_move, lambda: test_the_context_is_the_run_behind_the_last_image(9)),
    (Trial, "commit", everything_stands, lambda: test_rejection_at_every_position_leaves_no_trace(2, 10)),
    (deepseek_v4_dspark, "context_of", context_is_a_row_short, lambda: test_a_block_is_what_the_formulas_say("v4", 0)),
]


@pytest.mark.parametrize(("where", "name", "fault", "notice"), FAULTS, ids=[name for _, name, _, _ in FAULTS])
def test_planted_faults_are_noticed(
    where: object, name: str, fault: object, notice: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    notice()
    monkeypatch.setattr(where, name, fault)
    with pytest.raises(AssertionError):
        notice()


# --- through the engine's scheduler and runner ---


def check(jobs: list[Job], kind: str, learned: bool = True, **drive: object) -> list[Outcome]:
    """The tokens must be those of each job alone without a drafter.

    A learned drafter has heard the answers and guesses what mostly follows a token: often right, often not.
    """
    want = alone(jobs, kind)
    with TemporaryDirectory() as folder:
        made = make_tiny_drafting(folder, kind, "dspark", want) if learned else folder_of(kind)
        guesser = ModelDrafter("dspark", drafter_of(kind, made), "cpu")
    outcomes = Drive(kind, drafter=guesser, drafts=DraftLimits(BLOCK, adaptive=False), **drive).run(jobs)
    for uid, outcome in enumerate(outcomes):
        assert outcome.tokens == want[uid], f"request {uid}: speculation changed the answer"
    return outcomes


def accepted(outcomes: list[Outcome]) -> int:
    return sum(sum(outcome.timings.accepted) for outcome in outcomes)


def text_jobs(seed: int, count: int) -> list[Job]:
    return [make_v4_job(100 * seed + i, 0, 6 + 5 * i, ending=Ending(30), at=i) for i in range(count)]


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("kind", ["v4", "v4_official"])
def test_text_is_the_same_with_and_without(kind: str, batch: int) -> None:
    outcomes = check(text_jobs(batch, 4), kind, slots=batch)
    drafted = sum(outcome.timings.drafted for outcome in outcomes)
    assert 10 < accepted(outcomes) < drafted - 10, "only one of acceptance and rejection has been seen"


def image_jobs() -> list[Job]:
    """Images early, late, twice, at the very end, alone, and behind more text than the window holds."""
    one, two = Square("one", (7, 5), 1), Square("two", (3, 9), 2)
    text = torch.randint(FIRST, VOCAB, (60,), generator=torch.Generator().manual_seed(5)).tolist()
    mark = [PLACEHOLDER]
    shapes = [
        (mark + text[:12], (one,)),
        (text[:20] + mark + text[20:22], (one,)),
        (text[:5] + mark + text[5:9] + mark + text[9:12], (one, one)),
        (text + mark + text[:3] + mark + text[3:5], (one, two)),
        (text[:9] + mark, (two,)),
        (mark, (two,)),
        (mark + mark + text[:30], (two, one)),
    ]
    return [v4_job(ids, pictures, ending=Ending(24)) for ids, pictures in shapes]


def test_images_early_late_twice_and_last() -> None:
    outcomes = check(image_jobs(), "v4_vision")
    assert accepted(outcomes) > 15
    for outcome in outcomes:
        assert outcome.timings.draft_steps > 0, "nobody guessed behind the images"
    ends = outcomes[4].timings
    assert ends.decode_steps > ends.draft_steps, "the first step behind an image that came last is a plain one"
    assert accepted(check(image_jobs(), "v4_vision", slots=1)) > 15
    assert accepted(check(image_jobs(), "v4_vision", landing=late(3), step_tokens=60, mixed_tokens=30)) > 15


def test_under_pressure_and_with_images() -> None:
    jobs = [make_v4_job(40 + i, i % 3, 14, ending=Ending(30)) for i in range(6)]
    outcomes = check(jobs, "v4_vision", pages=24, step_tokens=64, mixed_tokens=64)
    assert sum(outcome.preemptions for outcome in outcomes) > 0 and accepted(outcomes) > 0


def test_a_drafter_that_is_never_right_changes_nothing_either() -> None:
    outcomes = check(image_jobs()[:3] + text_jobs(3, 2), "v4_vision", learned=False)
    assert sum(outcome.timings.drafted for outcome in outcomes) > 50


# --- finding and loading ---


def test_auto_finds_it_in_the_checkpoint() -> None:
    model, folder = tiny("v4")[0], folder_of("v4")
    assert v4_draft_kind(folder) == "dspark" and v4_draft_kind(tiny("v4")[2]) is None
    for settings, most_len in ((Settings(), BLOCK), (Settings(draft="mtp"), BLOCK), (Settings(draft_len=8), 8)):
        found = find_drafter(settings, folder, None, model, PLACE)
        assert found is not None and (found.name, found.most_len) == ("dspark", most_len)
    assert find_drafter(Settings(), tiny("v4")[2], None, model, PLACE) is None
    with pytest.raises(CheckpointError, match="no drafter of its own"):
        find_drafter(Settings(draft="mtp"), tiny("v4")[2], None, model, PLACE)


def test_a_wider_block_is_the_formulas_wider_block() -> None:
    model = tiny("v4")[0]
    assert isinstance(model, DeepseekV4)
    drafter = load_spark(folder_of("v4"), model, PLACE, 8)
    memory, features = blank(drafter), torch.randn(13, 128)
    drafter.observe(seen_of([(0, 0, [20] * 13, features)]), memory)
    agree(drafter, memory, asked_of([44], [13], [0], 8), [(features, 0)], folder_of("v4"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dspark_noise_token_id": VOCAB}, "not in the vocabulary"),
        ({"dspark_target_layer_ids": [3, 9]}, "holds 9"),
        ({"dspark_block_size": 0}, "nothing to guess"),
        ({"dspark_markov_rank": None}, "lacks dspark_markov_rank"),
        ({"dspark_markov_rank": 7}, "markov"),
        ({"dspark_target_layer_ids": [3]}, "main_proj"),
    ],
)
def test_what_does_not_fit_is_named_and_auto_goes_on_without(
    change: dict[str, object], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_tiny_drafting(tmp_path, "v4", "dspark")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(CheckpointError, match=reason):
        find_drafter(Settings(draft="mtp"), tmp_path, None, tiny("v4")[0], PLACE)
    assert find_drafter(Settings(), tmp_path, None, tiny("v4")[0], PLACE) is None
    assert any(reason in record.getMessage() for record in caplog.records)


def test_shapes_of_the_release() -> None:
    """As released: three stages, features of three layers, rank 256; the head's tensors stand in the last stage."""
    target = v4_config(RELEASE | {"vision_n_layers": 32})
    shapes = spark_shapes(target, SparkConfig(5, 128799, (40, 41, 42), 256), 3, False)
    want = {"mtp.0.main_proj.weight": (4096, 12288), "mtp.0.main_norm.weight": (4096,), "mtp.2.norm.weight": (4096,)}
    want |= {"mtp.2.hc_head_fn": (4, 16384), "mtp.2.markov_head.markov_w1.weight": (129280, 256)}
    want |= {"mtp.2.confidence_head.proj.weight": (1, 4352), "mtp.1.ffn.gate.bias_vl": (256,)}
    want |= {"mtp.1.attn.wo_a.weight": (8192, 4096), "mtp.2.ffn.experts.255.w2.weight": (4096, 2048)}
    assert {name: shapes[name] for name in want} == want
    assert not any("compressor" in name or "tid2eid" in name for name in shapes)
    assert not [name for name in shapes if ".norm" in name and name.startswith(("mtp.0.norm", "mtp.1.norm"))]


def test_eight_bit_projections_become_the_numbers_they_stand_for(tmp_path: Path) -> None:
    """main_proj as the release stores it, float8 with a scale of a power of two for each square of 128."""
    make_tiny_drafting(tmp_path, "v4", "dspark")
    path, name = tmp_path / "drafter.safetensors", "mtp.0.main_proj"
    tensors = load_file(path)
    codes = tensors[f"{name}.weight"].to(torch.float8_e4m3fn)
    tensors |= {f"{name}.weight": codes, f"{name}.scale": torch.tensor([[0.25]]).to(torch.float8_e8m0fnu)}
    save_file(tensors, path)
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"][f"{name}.scale"] = path.name
    (tmp_path / INDEX).write_text(json.dumps(index))
    drafter = drafter_of("v4", tmp_path)
    assert torch.equal(drafter.weights.main, codes.float().T / 4)


def test_a_text_checkpoint_without_drafter_has_none(tmp_path: Path) -> None:
    assert v4_draft_kind(make_tiny_v4(tmp_path, "v4")) is None
