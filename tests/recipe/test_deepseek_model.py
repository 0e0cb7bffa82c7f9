"""The trainable DeepSeek V4 reader and drafter compute what the server and transformers compute (fp32, CPU, toy)."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from foveate.core.config import PictureLimits
from foveate.core.images import Kind
from foveate.models.deepseek_v4 import DeepseekV4
from foveate.models.deepseek_v4_draft_weights import load_spark
from foveate.models.registry import describe, load_text, load_vision
from foveate.models.weights import Place
from foveate.prompt.chat import ChatTemplate
from foveate.prompt.layout import lay_out_for
from foveate.prompt.pixels import measure
from foveate.prompt.tokens import Tokens
from foveate.run.cache import allocate
from recipe.deepseek_draft import Blocks, seen_by_blocks
from recipe.deepseek_encode import BlockEncoder, characters_of, square_patches
from recipe.deepseek_model import SightPack, SightReader
from recipe.deepseek_ops import Spans, attend, tiled
from recipe.deepseek_shapes import sight_preset
from recipe.staging import StaticPack
from tests.models.v4_bench import Bench
from tests.models.v4_naive import Prompt
from tests.recipe.sights import CPU, SHAPE, exported, filled, noise, tokenizer
from tests.spec.test_deepseek_dspark import asked_of, seen_of

VOCAB = SHAPE.text.vocab


def conversations(static: StaticPack) -> list[tuple[int, int, int]]:
    """(row, first, past the last token) of every conversation; padding begins one of its own and is left out."""
    out = []
    begin = tokenizer().token_to_id("<｜begin▁of▁sentence｜>")
    for row in range(static.shape.fields()["ids"][0][0]):
        starts = static["start"][row].int()
        for first in sorted(set(starts.tolist())):
            if static["ids"][row, first] == begin:
                places = (starts == first).nonzero().flatten()
                out.append((row, first, int(places[-1]) + 1))
    return out


def prompt_of(static: StaticPack, rows: Tensor, row: int, first: int, last: int) -> Prompt:
    """One conversation as the server is given it: sentinel ids, rows of whole blocks."""
    shape, flat = static.shape, static["source"].view(static["ids"].shape)
    ids, given, blocks = static["ids"][row, first:last].tolist(), dict[int, Tensor](), list[tuple[int, int]]()
    learned = exported()[1]
    names = ("image_start", "image_pad", "image_newline", "image_end")
    kinds = (Kind.START, Kind.PAD, Kind.NEWLINE, Kind.END)
    for at in range(last - first):
        source = int(flat[row, first + at]) - shape.tokens
        inside = static["first"][row, first + at] != static["last"][row, first + at]
        if not static["image"][row, first + at]:
            continue
        number = source - shape.cells
        ids[at] = VOCAB + (Kind.IMAGE if number < 0 else kinds[number])
        if inside:
            given[at] = rows[source] if number < 0 else getattr(learned, names[number])
            edges = (int(static["first"][row, first + at]) - first, int(static["last"][row, first + at]) - first + 1)
            blocks += [edges] if edges not in blocks else []
    return Prompt(ids, given, blocks)


@torch.no_grad()
def test_packed_reader_equals_the_server() -> None:
    """Conversations side by side with their images, against the served model on the exported folder, one by one."""
    folder, reader, _ = exported()
    static = filled()
    hidden, rows, _ = reader(static.pack(), static.shape.longest_image, torch.float32)
    logits = reader.logits(hidden).view(*static["ids"].shape, -1)
    model, images = load_text(folder, "cpu", torch.float32), 0
    assert isinstance(model, DeepseekV4)
    for row, first, last in conversations(static):
        bench = Bench(model, page_len=16)
        prompt = prompt_of(static, rows, row, first, last)
        images += len(prompt.blocks)
        want = bench.step((bench.begin(prompt), len(prompt.ids)))[0]
        assert (want - logits[row, first:last]).abs().max() < 1e-4, "a packed conversation differs from the served one"
    assert images > 2 and logits.abs().max() > 3


@torch.no_grad()
def test_packed_tower_equals_the_server() -> None:
    """The same pictures through the served preprocessing, tower and aligner give the pack's rows."""
    import io

    folder, reader, _ = exported()
    tower, rules = load_vision(folder, "cpu", torch.float32), describe(folder).image_rules
    static, rng = filled(), random.Random("0")
    _, rows, _ = reader(static.pack(), static.shape.longest_image, torch.float32)
    encoder, at = BlockEncoder(tokenizer(), SHAPE.vision), 0
    for _ in range(3):
        for chart in noise(rng).charts:
            raw = io.BytesIO()
            chart.image.save(raw, "PNG")
            picture = measure(raw.getvalue(), rules, PictureLimits(), "image")
            assert picture.rows == encoder.image_len(chart.image.size)
            block = tower.encode([picture.pixels()])[0]
            cells = len(square_patches(picture.grid, SHAPE.vision.cell))
            shown = [row for row in range(len(block)) if any((block[row] - one).abs().max() < 1e-4 for one in rows)]
            assert len(shown) == cells
            assert (block[shown] - rows[at : at + cells]).abs().max() < 1e-4, "rows, or their order, differ"
            at += cells
    assert at > 20


@torch.no_grad()
def test_text_equals_transformers() -> None:
    from transformers import DeepseekV4ForCausalLM

    folder, reader, _ = exported()
    theirs = DeepseekV4ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.randint(0, 480, (1, 96), generator=torch.Generator().manual_seed(0))
    at, static = torch.arange(96, dtype=torch.int32)[None], filled()
    pack: SightPack = static.pack()
    nothing = torch.zeros(1, 96, dtype=torch.bool)
    pack = pack._replace(ids=ids, source=torch.arange(96), image=nothing, age=at, spans=Spans(at * 0, at, at))
    hidden, *_ = reader(pack, static.shape.longest_image, torch.float32)
    want = theirs(input_ids=ids, use_cache=False).logits[0]
    assert (reader.logits(hidden) - want).abs().max() < 1e-4 and want.abs().max() > 3


def test_ids_are_those_that_the_server_renders() -> None:
    """A whole conversation with images: special tokens, joins, blocks and leading pads."""
    import io

    folder, _, _ = exported()
    card, tokens = describe(folder), Tokens.load(folder)
    template = ChatTemplate.load(folder, tokens, card.image_token_id, card.model_type)
    encoder, rng, images = BlockEncoder(tokenizer(), SHAPE.vision), random.Random(4), 0
    for _ in range(8):
        talk = noise(rng)
        messages: list[dict[str, Any]] = []
        for number, turn in enumerate(talk.turns):
            parts = talk.parts if number == 0 else [("text", turn.question)]
            content = [{"type": k, "image": v} if k == "image" else {"type": k, "text": v} for k, v in parts]
            messages += [{"role": "user", "content": content}, {"role": "assistant", "content": turn.answer}]
        rendered = template.render(messages, {"add_generation_prompt": False})
        pictures = []
        for chart in talk.charts:
            raw = io.BytesIO()
            chart.image.save(raw, "PNG")
            pictures.append(measure(raw.getvalue(), card.image_rules, PictureLimits(), "image"))
        want = lay_out_for(card, rendered.ids, pictures)
        got = encoder.segment(talk, 10_000)
        ids = [VOCAB + kind if kind >= 0 else token for token, kind in zip(got.ids, got.kinds, strict=True)]
        assert ids == list(want.tokens)
        assert [(p.start_at, p.grid) for p in got.pictures] == [(s.start_at, s.grid) for s in want.spans]
        images += len(pictures)
    assert images > 3


def test_labels_are_answers_and_their_end_alone() -> None:
    static = filled()
    ids, real = static["ids"].flatten().int(), static["weight"] > 0
    assert torch.equal(ids[static["label_at"][real].long() + 1], static["label"][real])
    said = tokenizer().decode(static["label"][real].tolist(), skip_special_tokens=False)
    assert all(part.strip().isdigit() for part in said.split("<｜end▁of▁sentence｜>")[:-1])
    assert (static["age"][static["start"] == torch.arange(static["age"].shape[1])] == 0).all()


@torch.no_grad()
def test_blocks_equal_the_served_drafter() -> None:
    """Sampled blocks over a pack, against the served DSpark behind the same tokens, images among them."""
    folder, reader, stages = exported()
    static = filled("2")
    pack = static.pack()
    x, rows, _ = reader.embeddings(pack, static.shape.longest_image, torch.float32)
    _, kept = reader.states(x, pack, SHAPE.draft.target_layers)
    features, size, noise_id = torch.cat(kept, -1), SHAPE.draft.block, tokenizer().token_to_id("<｜noise｜>")
    model = load_text(folder, "cpu", torch.float32)
    assert isinstance(model, DeepseekV4)
    drafter, behind_images = load_spark(folder, model, Place(CPU, torch.float32)), 0
    for row, first, last in conversations(static):
        length = int((static["ids"][row, first:last] != 0).nonzero()[-1]) + 1
        anchors = torch.tensor([[first + length - 3]]).expand(len(pack.ids), 1)
        ids = torch.full((len(pack.ids), size), noise_id)
        ids[:, 0] = pack.ids[:, first + length - 3]
        where = length - 3 + torch.arange(size).expand(len(pack.ids), -1)
        seen = seen_by_blocks(pack, anchors, size, SHAPE.text.window)
        blocks = Blocks(anchors, ids, where, seen, ids[:, None], ids[:, None])
        states = stages(reader.embed(ids), features, pack.age, blocks)[row]
        prompt = prompt_of(static, rows, row, first, last)
        memory = allocate(drafter.memory_spec(), 1, 4, 1, "cpu")
        part = slice(first, first + length - 3)
        drafter.observe(seen_of([(0, 0, prompt.ids[: length - 3], features[row, part])]), memory)
        asked = asked_of([int(ids[row, 0])], [length - 3], [0], size)
        assert (drafter.block_states(asked, memory)[0] - states).abs().max() < 1e-4
        guesses = drafter.propose(asked, memory, lambda logits, depth: logits.argmax(-1))
        before = torch.cat([ids[row, :1], guesses.tokens[0, :-1]])
        logits, sure = stages.guesses(states, reader.head(stages.mtp[-1].norm(states)), before)
        assert torch.equal(logits.argmax(-1), guesses.tokens[0])
        assert (sure.sigmoid() - guesses.confidence[0]).abs().max() < 1e-4
        behind_images += bool(prompt.blocks)
    assert behind_images > 2


def test_gradients_reach_every_parameter() -> None:
    _, reader, _ = exported()
    static = filled()
    hidden, rows, patches = reader(static.pack(), static.shape.longest_image, torch.float32)
    (reader.logits(hidden).logsumexp(-1).mean() + rows.square().mean() + patches.square().mean()).backward()
    missing = [name for name, p in reader.named_parameters() if p.requires_grad and p.grad is None]
    dead = [name for name, p in reader.named_parameters() if p.requires_grad and not p.grad.abs().sum()]
    for p in reader.parameters():
        p.grad = None
    assert not missing and not dead


def test_attention_is_a_softmax_with_a_sink_dense_and_in_tiles() -> None:
    """Both ways against the formula; flex attention has no gradients on a CPU, dense attention has the right ones."""
    generator = torch.Generator().manual_seed(0)
    q, keys = (torch.randn(*s, generator=generator, requires_grad=True) for s in ((2, 300, 4, 16), (2, 310, 16)))
    sink = torch.randn(4, generator=generator, requires_grad=True)
    seen = torch.rand(2, 300, 310, generator=generator) < 0.4
    seen[:, 3] = False  # a query that sees nothing but the sink
    seen[:, 128:256, 128:256], seen[1, 128:256, :128] = True, False  # a tile that is whole, and an empty one
    scores = (torch.einsum("rqhd,rkd->rhqk", q, keys) / 4).masked_fill(~seen[:, None], float("-inf"))
    scores = torch.cat([scores, sink.view(1, 4, 1, 1).expand(2, -1, 300, 1)], -1)
    want, dense = torch.einsum("rhqk,rkd->rqhd", scores.softmax(-1)[..., :-1], keys), attend(q, keys, seen, sink)
    assert (dense - want).abs().max() < 1e-5
    grads = [torch.autograd.grad(out.square().sum(), (q, keys, sink)) for out in (want, dense)]
    assert all((one - two).abs().max() < 1e-4 for one, two in zip(*grads, strict=True))
    with torch.no_grad(), pytest.warns(UserWarning, match=r"torch\.compile"):  # unfused, as here nothing fuses it
        out = attend(q.detach(), keys.detach(), tiled(seen), sink.detach())
    assert (out - want).abs().max() < 1e-5


def test_characters_stand_where_padding_moved_them() -> None:
    """A picture of 56 x 28 in a grid of 4 x 4 patches is centred: 14 rows of grey above it."""
    slots = characters_of([("b", 20.0, 4.0), ("a", 17.0, 4.0), ("z", 1.0, 20.0)], (56, 28), (4, 4), 14)
    assert slots.shape == (16, 3)
    assert slots[4 + 1].tolist() == [ord("a") - 32, ord("b") - 32, 0]
    assert slots[8, 0] == ord("z") - 32 and slots.astype(bool).sum() == 3


def test_the_chart_preset_is_small_and_its_config_is_whole() -> None:
    reader = SightReader(sight_preset("chart"))
    assert sum(p.numel() for p in reader.parameters()) <= 25_000_000
    folder, _, _ = exported()
    config = json.loads((folder / "config.json").read_text())
    assert config["dspark_target_layer_ids"] == [1, 3] and config["num_nextn_predict_layers"] == 2
    assert describe(folder).image_token_id == tokenizer().token_to_id("<｜deepseek_image｜>")


@pytest.mark.parametrize("cell", [2, 3])
def test_squares_are_the_blocks_cells(cell: int) -> None:
    squares = square_patches((5, 7), cell)
    down, across = -(-5 // cell), -(-7 // cell)
    assert squares.shape == (down * across, cell * cell)
    assert sorted(squares[squares >= 0].tolist()) == list(range(35))
    assert squares[0, 0] == 0 and squares[1, 0] == cell * 7, "two rows of cells run column by column"
