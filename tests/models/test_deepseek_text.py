"""The DeepSeek V4 text model against transformers, and its own equivalences: chunked = whole, shared = alone."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from foveate.models.deepseek_v4 import DeepseekV4
from foveate.models.deepseek_v4_config import v4_config
from foveate.models.interface import Capture
from foveate.models.registry import describe, load_text
from tests.models.v4_bench import TOLERANCE, Bench, Pair, greedy, in_chunks
from tests.models.v4_naive import Naive, Prompt
from tests.models.v4_release import RELEASE
from tests.support.tiny import write_tensors
from tests.support.tiny_v4 import CSA, HCA, SLIDING, V4_KINDS, make_tiny_v4, tiny_v4_config, tiny_v4_tensors, write_json

LENGTHS = {"v4": 100, "v4_official": 300, "v4_wide": 70}  # several windows of every ratio


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    return {kind: Pair.of(tmp_path_factory.mktemp(kind), kind) for kind in V4_KINDS}


@pytest.fixture(params=V4_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def tokens(seed: int, count: int) -> list[int]:
    return torch.randint(0, 320, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 11, 64, 1000])
def test_logits_equal_the_reference_for_any_chunks(pairs: dict[str, Pair], kind: str, size: int) -> None:
    pair, ids = pairs[kind], tokens(1, LENGTHS[kind])
    want = pair.wanted(ids)
    assert (in_chunks(Bench(pair.model), ids, [size]) - want).abs().max() <= TOLERANCE
    assert want.abs().max() > 4, "flat logits would hide mistakes"


@pytest.mark.parametrize("page_len", [1, 3, 8, 32, 200])
def test_entries_find_their_pages_whatever_a_page_holds(pairs: dict[str, Pair], kind: str, page_len: int) -> None:
    pair, ids = pairs[kind], tokens(2, LENGTHS[kind])
    bench = Bench(pair.model, page_len=page_len, pages=-(-400 // page_len))
    assert (in_chunks(bench, ids, [13, 1, 40]) - pair.wanted(ids)).abs().max() <= TOLERANCE


def test_greedy_tokens_equal_the_reference(pairs: dict[str, Pair], kind: str) -> None:
    pair, ids = pairs[kind], tokens(3, 30)
    options = {"max_new_tokens": 60, "do_sample": False, "eos_token_id": None, "pad_token_id": None}
    asked = torch.tensor([ids])
    want = pair.reference.generate(input_ids=asked, attention_mask=torch.ones_like(asked), **options)[0, 30:].tolist()
    assert greedy(Bench(pair.model), ids, 60) == want


@pytest.mark.parametrize("seed", range(20))
def test_brute_force_over_cuts(pairs: dict[str, Pair], seed: int) -> None:
    pair, ids, rng = pairs[V4_KINDS[seed % 3]], tokens(100 + seed % 3, 90), random.Random(seed)
    sizes = [rng.choice([1, 1, 2, rng.randint(1, 9), rng.randint(1, 40)]) for _ in range(90)]
    assert (in_chunks(Bench(pair.model, seed=seed), ids, sizes) - pair.wanted(ids)).abs().max() <= TOLERANCE, sizes


def test_a_shared_pass_of_four_equals_four_alone(pairs: dict[str, Pair], kind: str) -> None:
    pair = pairs[kind]
    prompts = [tokens(seed, length) for seed, length in ((4, 90), (5, 33), (6, 61), (7, 8))]
    alone = [in_chunks(Bench(pair.model), ids, [1000]) for ids in prompts]
    bench = Bench(pair.model, seed=3)
    running = [bench.begin(ids) for ids in prompts]
    got: list[list[Tensor]] = [[] for _ in prompts]
    # Chunks of different lengths, single tokens between them, and sequences that begin while others go on.
    for sizes in ((9, 0, 5, 0), (1, 12, 1, 0), (1, 1, 1, 1), (30, 1, 11, 7), (1, 2, 1, 0), (99, 99, 99, 0)):
        work = [(s, min(size, len(s.prompt.ids) - s.past_len)) for s, size in zip(running, sizes, strict=True)]
        members = [number for number, (_, size) in enumerate(work) if size]
        parts = bench.step(*(work[number] for number in members))
        for number, part in zip(members, parts, strict=True):
            got[number].append(part)
    for want, parts in zip(alone, got, strict=True):
        assert (torch.cat(parts) - want).abs().max() <= TOLERANCE


def test_each_expert_is_read_once_a_pass(pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """Hyper-connections and experts run once over the rows of all sequences."""
    calls: list[int] = []
    grouped = torch.nn.functional.grouped_mm

    def counted(x: Tensor, *others: Tensor, **more: Tensor) -> Tensor:
        calls.append(len(x))
        return grouped(x, *others, **more)

    monkeypatch.setattr("torch.nn.functional.grouped_mm", counted)
    pair = pairs["v4"]
    bench = Bench(pair.model)
    bench.step(*((bench.begin(tokens(seed, 10 + seed)), 10 + seed) for seed in range(4)))
    rows = sum(10 + seed for seed in range(4)) * 2  # two experts each
    assert calls == [rows] * 2 * 5, "two products a layer"


def test_a_used_slot_and_used_pages_start_afresh(pairs: dict[str, Pair], kind: str) -> None:
    bench, ids = Bench(pairs[kind].model, slots=1, pages=40), tokens(8, LENGTHS[kind])
    first = in_chunks(bench, ids, [7])
    in_chunks(bench, tokens(9, 55), [7])
    assert torch.equal(in_chunks(bench, ids, [7]), first)


def test_both_spellings_of_a_config_are_one_model(tmp_path: Path) -> None:
    make_tiny_v4(tmp_path, "v4_official")
    config = tiny_v4_config("v4_official")
    ids = tokens(10, 140)
    want = in_chunks(Bench(_loaded(tmp_path)), ids, [1000])
    del config["compress_ratios"], config["num_hash_layers"], config["qk_rope_head_dim"]
    yarn = config.pop("rope_scaling")
    config |= {"layer_types": [SLIDING, CSA, HCA, CSA], "compress_rates": {CSA: 4, HCA: 128}}
    config |= {"mlp_layer_types": ["hash_moe", "moe", "moe", "moe"], "partial_rotary_factor": 8 / 24}
    for rope in (yarn, {"main": {"rope_type": "default", "rope_theta": 10000.0}, "compress": yarn}):
        write_json(tmp_path / "config.json", config | {"rope_parameters": rope})
        assert torch.equal(in_chunks(Bench(_loaded(tmp_path)), ids, [1000]), want)


def _loaded(folder: Path) -> DeepseekV4:
    model = load_text(folder, "cpu", torch.float32)
    assert isinstance(model, DeepseekV4)
    return model


def test_captures_are_means_over_the_streams(pairs: dict[str, Pair], kind: str) -> None:
    model, ids = pairs[kind].model, tokens(11, 40)
    layers = (-1, 0, model.layer_count - 1)
    bench = Bench(model)
    forward = bench.run((bench.begin(ids), ids, False), capture=Capture(layers, final=True, streams=True))
    naive = Naive(tiny_v4_tensors(kind), tiny_v4_config(kind)).states(Prompt(ids))
    assert forward.features is not None and forward.final is not None and forward.streams is not None
    for got, number in zip(forward.features.chunk(3, -1), layers, strict=True):
        assert (got - naive[number + 1]).abs().max() < 2e-5
    assert (forward.final - naive[-1]).abs().max() < 2e-5
    assert (model.head(forward.final) - forward.logits).abs().max() < 1e-6
    streams = forward.streams.unflatten(1, (model.config.streams, -1))
    assert (streams.mean(1) - forward.features.chunk(3, -1)[2]).abs().max() < 1e-6
    assert (streams[:, 0] - streams[:, 1]).abs().max() > 0.1, "streams that are all the same say nothing"


def test_only_wanted_logits_come_back(pairs: dict[str, Pair]) -> None:
    pair, ids = pairs["v4"], tokens(12, 20)
    bench = Bench(pair.model)
    batch = replace(bench.batch([(bench.begin(ids), ids, False)]), logits_at=torch.tensor([19, 3]))
    got = pair.model.forward(batch, bench.memory)
    assert got.dtype == torch.float32 and (got - pair.wanted(ids)[[19, 3]]).abs().max() <= TOLERANCE


def test_equal_scores_choose_the_same_entries_in_any_chunks(tmp_path: Path) -> None:
    """With one index head most scores are exactly 0; a choice among equals may not depend on what comes later."""
    make_tiny_v4(tmp_path, "v4")
    config, tensors = tiny_v4_config("v4") | {"index_n_heads": 1}, tiny_v4_tensors("v4")
    for name in tensors:
        if name.endswith("indexer.wq_b.weight"):
            tensors[name] = tensors[name][:32].clone()
        if name.endswith("weights_proj.weight"):
            tensors[name] = tensors[name][:1].clone()
    write_json(tmp_path / "config.json", config)
    write_tensors(tmp_path, tensors)
    model, ids = _loaded(tmp_path), tokens(13, 44)
    want = in_chunks(Bench(model), ids, [1000])
    for size in (1, 3, 16):
        assert (in_chunks(Bench(model), ids, [size]) - want).abs().max() <= TOLERANCE
    assert (Naive(tensors, config).logits(Prompt(ids)) - want).abs().max() <= TOLERANCE


def test_bfloat16_stays_near_float32(pairs: dict[str, Pair], kind: str) -> None:
    model, ids = load_text(pairs[kind].folder, "cpu", torch.bfloat16), tokens(14, 60)
    assert isinstance(model, DeepseekV4)
    got = in_chunks(Bench(model), ids, [7])
    # Random weights have no margins: compare directions, not choices.
    assert torch.cosine_similarity(got, pairs[kind].wanted(ids), dim=1).median() > 0.97


def test_memory_is_what_the_layers_need(pairs: dict[str, Pair]) -> None:
    spec = pairs["v4"].model.memory_spec()
    assert {p.name: (p.shape, p.every) for p in spec.paged} == {
        "entries.2": ((32,), 4),
        "index.2": ((32,), 4),
        "entries.3": ((32,), 8),
        "entries.4": ((32,), 4),
        "index.4": ((32,), 4),
    }
    shapes = {s.name: s.shape for s in spec.state}
    window = {f"window.{i}": (8, 32) for i in range(5)}
    assert shapes == window | {"open.2": (8, 256), "open.3": (8, 64), "open.4": (8, 256)}
    assert spec.token_bytes() == (4 * 32 * 4) // 4 + 32 * 4 // 8
    assert spec.page_bytes(8) == 4 * 2 * 128 + 128 and spec.page_bytes(9) == 4 * 3 * 128 + 2 * 128


def test_a_release_needs_what_its_description_says() -> None:
    """6,880 bytes a token, 5.4 MiB of windows and 11.6 MiB of compressor state, in bfloat16."""
    config = v4_config(RELEASE)
    trunk = type("Weightless", (), {"embedding": torch.zeros(1, dtype=torch.bfloat16), "layers": config.layers})
    spec = DeepseekV4(config, trunk).memory_spec()  # type: ignore[arg-type]
    assert spec.token_bytes() == 6880
    assert spec.page_bytes(128) == 6880 * 128
    windows = [s for s in spec.state if s.name.startswith("window")]
    assert len(windows) == 43 and sum(128 * 512 * 2 for _ in windows) / 2**20 == pytest.approx(5.4, abs=0.03)
    assert spec.slot_bytes() / 2**20 == pytest.approx(5.4 + 11.6, abs=0.2)


def test_a_card_without_eyes(pairs: dict[str, Pair]) -> None:
    card = describe(pairs["v4"].folder)
    assert (card.model_type, card.vocab_size, card.hidden_size, card.axes) == ("deepseek_v4", 320, 64, 1)
    assert card.image_rules is None and card.eos_ids == {1} and card.sampling.temperature == 0.0


def test_progress_counts_the_bytes_of_the_text_model(pairs: dict[str, Pair]) -> None:
    seen: list[tuple[int, int]] = []
    load_text(pairs["v4"].folder, "cpu", torch.bfloat16, lambda done, total: seen.append((done, total)))
    want = sum(t.numel() * t.element_size() for t in tiny_v4_tensors("v4").values())
    assert seen[-1] == (want, want) and [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_random_weights_run(pairs: dict[str, Pair], kind: str) -> None:
    model = load_text(pairs[kind].folder, "cpu", torch.float32, dummy=True)
    assert isinstance(model, DeepseekV4)
    assert in_chunks(Bench(model), tokens(15, 30), [7]).isfinite().all()


def test_config_round_trips_through_the_file(pairs: dict[str, Pair], kind: str) -> None:
    """What transformers writes of a config is read as the same model."""
    own = v4_config(json.loads((pairs[kind].folder / "config.json").read_text()))
    theirs = json.loads(pairs[kind].reference.config.to_json_string(use_diff=False))
    if kind == "v4_wide":  # it has an indexer's sizes beside no sparse layer; both read none
        assert own.indexer is None
    assert v4_config(theirs) == own
