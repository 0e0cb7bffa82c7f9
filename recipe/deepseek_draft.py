"""The DSpark drafter as a trainable module, and its training on the finished model's own answers.

Owns its maths over packs, its loss and its step. Promises the released names below `mtp.` and what a server does with
them: a block [anchor, noise, ...] sees the features of the tokens behind the last image, at most a window of them, and
itself, both ways; every slot guesses the token behind it. Learns what the model itself would say next, and how often
that is what it guesses. Knows nothing about verification.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe.deepseek_experts import balance
from recipe.deepseek_init import initialise_sight, muon_parts
from recipe.deepseek_model import Block, Head, Norm, Reach, SightReader
from recipe.deepseek_ops import frequencies, rope_tables
from recipe.deepseek_packs import BlockPackShape, sight_pack
from recipe.deepseek_shapes import SightShape
from recipe.journal import Journal
from recipe.optimizer import MuonAdam
from recipe.staging import Captured, Stager, StaticPack
from recipe.train import dtype_on
from recipe.train_draft import DraftPlan, fit_drafts
from recipe.vision import Linear

FADE = 4.0  # slots over which a guess's weight in the loss falls to a third


class Blocks(NamedTuple):
    """Sampled blocks of a pack: `count` a row, each of an anchor and noise."""

    anchors: Tensor  # [rows, count]: places in the row
    ids: Tensor  # [rows, count * block]
    where: Tensor  # [rows, count * block]: positions
    seen: Tensor  # [rows, count * block, count * block + tokens] bool: the blocks' own slots, then the context
    labels: Tensor  # [rows, count, block]
    weights: Tensor  # [rows, count, block]: falling, zero beyond the answer


class Watched(NamedTuple):
    """What the frozen model made of a pack."""

    features: Tensor  # [rows, tokens, layers * hidden]
    greedy: Tensor  # [rows, tokens]: its choice for the next token
    answers: Tensor  # [rows, tokens] bool: whether the next token belongs to an answer


class Stages(nn.Module):
    """Names below `mtp.`: sliding layers; the first has the projection of features, the last one the heads."""

    def __init__(self, shape: SightShape) -> None:
        super().__init__()
        text, draft = shape.text, shape.draft
        self.shape = shape
        self.mtp = nn.ModuleList(Block(text, "s", hashed=False) for _ in range(draft.stages))
        first, last = self.mtp[0], self.mtp[-1]
        first.main_proj = Linear(len(draft.target_layers) * text.hidden, text.hidden, bias=False)
        first.main_norm, last.norm = Norm(text.hidden, text.eps), Norm(text.hidden, text.eps)
        last.hc_head, last.markov_head, last.confidence_head = Head(text), nn.Module(), nn.Module()
        last.markov_head.markov_w1 = Linear(draft.rank, text.vocab, bias=False)
        last.markov_head.markov_w2 = Linear(draft.rank, text.vocab, bias=False)
        last.confidence_head.proj = Linear(text.hidden + draft.rank, 1, bias=False)
        self.register_buffer("plain", frequencies(text.theta, text.rotary), persistent=False)

    def forward(self, words: Tensor, features: Tensor, age: Tensor, blocks: Blocks) -> Tensor:
        """States [rows, count * block, hidden] before the final norm.

        words [rows, count * block, hidden]: embeddings; features [rows, tokens, layers * hidden]; age [rows, tokens].
        """
        text, first, last = self.shape.text, self.mtp[0], self.mtp[-1]
        main = first.main_norm(first.main_proj(features))
        reach = Reach(rope_tables(blocks.where, self.plain), rope_tables(age, self.plain), blocks.seen, age)
        streams = words.unsqueeze(-2).repeat(1, 1, text.streams, 1)
        image = torch.zeros_like(blocks.ids, dtype=torch.bool)
        for stage in self.mtp:
            streams = stage(streams, blocks.ids, image, reach, main)
        return last.hc_head(streams)

    def guesses(self, states: Tensor, logits: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Logits with the Markov bias of the tokens `before`, and the confidence logits; all [..., block, ...]."""
        last = self.mtp[-1]
        markov = F.embedding(before, last.markov_head.markov_w1.weight.to(states.dtype))
        sure = last.confidence_head.proj(torch.cat([states, markov], -1).float()).squeeze(-1)
        return logits + last.markov_head.markov_w2(markov).float(), sure


@torch.no_grad()
def watch(reader: SightReader, static: StaticPack, layers: tuple[int, ...], dtype: torch.dtype) -> Watched:
    """One frozen pass of the model over a pack."""
    pack = static.pack()
    x, *_ = reader.embeddings(pack, static.shape.longest_image, dtype)
    streams, kept = reader.states(x, pack, layers)
    greedy = reader.logits(reader.final(streams).flatten(0, 1)).argmax(-1).view_as(pack.ids)
    answers = torch.zeros(pack.ids.numel(), device=x.device)
    answers.index_add_(0, static["label_at"].long(), static["weight"])
    return Watched(torch.cat(kept, -1), greedy, (answers > 0).view_as(pack.ids))


def sample_blocks(pack: Any, watched: Watched, shape: SightShape, count: int, noise_id: int) -> Blocks:
    """`count` random anchors a row among answer tokens; random numbers from the device's generator."""
    block, (rows, tokens) = shape.draft.block, pack.ids.shape
    device, answers = pack.ids.device, watched.answers
    inside = answers & answers.roll(1, 1)  # this token and the next are of the answer
    inside[:, 0] = False
    inside[:, tokens - block :] = False
    anchors = (torch.rand(rows, tokens, device=device) + inside).topk(count, 1).indices.sort(1).values
    steps = torch.arange(block, device=device)
    places = (anchors[..., None] + steps).clamp(max=tokens - 1).flatten(1)  # [rows, count * block]
    spread = (rows, count, block)
    alive = answers.gather(1, places).view(spread).long().cumprod(-1) * inside.gather(1, anchors)[..., None]
    ids = torch.where(steps == 0, pack.ids.gather(1, places).view(spread), noise_id).flatten(1)
    where = (pack.age.gather(1, anchors)[..., None] + steps).flatten(1)
    labels = watched.greedy.gather(1, places).view(spread)
    seen = seen_by_blocks(pack, anchors, block, shape.text.window)
    return Blocks(anchors, ids, where, seen, labels, alive * torch.exp(-steps / FADE))


def seen_by_blocks(pack: Any, anchors: Tensor, block: int, window: int) -> Tensor:
    """Each block sees itself and what stands before its anchor: behind the last image, in the window.

    bool [rows, count * block, count * block + tokens].
    """
    rows, tokens = pack.ids.shape
    at = torch.arange(tokens, device=pack.ids.device)
    behind = torch.where(pack.image, at + 1, 0).cummax(1).values  # behind the last image token up to here
    tail = torch.maximum(behind.gather(1, anchors), pack.spans.start.long().gather(1, anchors))
    near = (at < anchors[..., None]) & (at >= anchors[..., None] - window) & (at >= tail[..., None])
    own = torch.arange(anchors.shape[1] * block, device=at.device) // block
    same = (own[:, None] == own[None, :]).expand(rows, -1, -1)
    return torch.cat([same, near.repeat_interleave(block, 1)], -1)


class SparkTrainer:
    """The drafter, its optimiser, one captured step."""

    names = ("dspark", "accepted", "confidence", "sure")

    def __init__(
        self, shape: SightShape, packs: BlockPackShape, plan: DraftPlan, reader: SightReader, noise_id: int
    ) -> None:
        self.shape, self.plan, self.reader, self.noise_id = shape, plan, reader, noise_id
        self.device = reader.embed.weight.device
        self.dtype, self.step = dtype_on(self.device), 0
        self.stages = Stages(shape)
        initialise_sight(self.stages, plan.seed, 2 * shape.draft.stages)
        self.stages.to(self.device)
        self.static = StaticPack(packs, self.device, sight_pack)
        named = self.stages.named_parameters()
        self.optimizer = MuonAdam(named, parts=lambda name, p: muon_parts(name, p, shape.text))
        self.sums = torch.zeros(4, device=self.device)

    def prepare(self, buffer: object) -> None:
        """Compile and capture the step on a pack that is then forgotten."""
        self.static.load(buffer)  # type: ignore[arg-type]
        cuda = self.device.type == "cuda"
        if cuda and self.plan.compile:
            for stage in self.stages.mtp:
                stage.compile(dynamic=False)
        before = [buffer.clone() for buffer in self.stages.buffers()]
        self.run = Captured(self._train_step, capture=cuda)
        self.optimizer.reset()
        self.sums.zero_()
        for held, value in zip(self.stages.buffers(), before, strict=True):
            held.copy_(value)

    def _train_step(self) -> None:
        for p in self.optimizer.parameters:
            p.grad = None
        loss, figures = self.loss()
        loss.backward()
        self.optimizer.clip(1.0)
        self.optimizer.step()
        balance(self.stages)
        self.sums += figures

    def loss(self) -> tuple[Tensor, Tensor]:
        """The loss of sampled blocks, and its figures in the order of `names`."""
        watched = watch(self.reader, self.static, self.shape.draft.target_layers, self.dtype)
        pack = self.static.pack()
        blocks = sample_blocks(pack, watched, self.shape, self.plan.blocks, self.noise_id)
        table = self.reader.embed.weight.detach().to(self.dtype)
        words = table.index_select(0, blocks.ids.flatten()).view(*blocks.ids.shape, -1)
        states = self.stages(words, watched.features, pack.age, blocks).view(*blocks.labels.shape, -1)
        head = self.reader.head.weight.detach().to(self.dtype)
        logits = F.linear(self.stages.mtp[-1].norm(states), head).float()
        anchors = pack.ids.gather(1, blocks.anchors)[..., None]
        before = torch.cat([anchors, blocks.labels[..., :-1]], -1)  # what stands before a slot if all is right so far
        return spark_loss(*self.stages.guesses(states, logits, before), blocks.labels, blocks.weights)

    def fit(self, stager: Stager, journal: Journal) -> None:
        """Train to the end of the plan."""
        fit_drafts(self, stager, journal)

    def masters(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Nothing for a folder of its own, and the tensors that belong into the checkpoint."""
        return {}, dict(self.stages.state_dict())


def spark_loss(logits: Tensor, sure: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted loss of guesses and of confidences, which learn whether a guess is right if those before it are.

    logits [..., block, vocab], sure [..., block] logits. Figures: loss, leading guesses that are right, confidence
    loss, mean confidence.
    """
    losses = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view_as(weights)
    right = ((logits.argmax(-1) == labels) & (weights > 0)).float()
    doubt = F.binary_cross_entropy_with_logits(sure, right, reduction="none")
    total = weights.sum().clamp(min=1.0)
    counted = weights[..., 0] > 0
    accepted = (right.cumprod(-1).sum(-1) * counted).sum() / counted.sum().clamp(min=1)
    loss, doubt = (losses * weights).sum() / total, (doubt * weights).sum() / total
    mean = (sure.sigmoid() * weights).sum() / total
    return loss + doubt, torch.stack([loss.detach(), accepted, doubt.detach(), mean.detach()])
