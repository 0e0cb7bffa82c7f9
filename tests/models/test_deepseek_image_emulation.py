"""Image prompts from pixels to logits, against transformers' text model taught to take images.

The library has no class for this model's vision. Three changes to its text model make it one that sees: rows in place
of embeddings, gates that route image tokens by `bias_vl`, and a mask in which a block sees itself both ways.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from foveate.models.deepseek_v4 import DeepseekV4
from foveate.models.registry import load_vision
from tests.models.v4_bench import TOLERANCE, Bench, in_chunks
from tests.models.v4_naive import Prompt
from tests.support.harness import Job, tiny
from tests.support.tiny_v4 import VOCAB, tiny_v4_config, tiny_v4_tensors
from tests.support.v4_jobs import make_v4_job

KIND = "v4_vision"
LEARNED = ("image_start", "image_pad", "", "image_newline", "image_end")


class Seeing:
    """The reference with eyes."""

    def __init__(self, folder: Path) -> None:
        self.model = transformers.DeepseekV4ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tensors, self.window = tiny_v4_tensors(KIND), tiny_v4_config(KIND)["sliding_window"]
        self.biased = True
        self.image, self.rows = torch.zeros(0, dtype=torch.bool), torch.zeros(0)
        self.model.model.embed_tokens.register_forward_hook(self._embed)
        for number, layer in enumerate(self.model.model.layers):
            layer.mlp.gate.forward = self._gate(layer.mlp.gate, self.tensors[f"layers.{number}.ffn.gate.bias_vl"])

    def _embed(self, module: Any, given: Any, embedded: Tensor) -> Tensor:
        embedded = embedded.clone()
        embedded[0, self.image] = self.rows
        return embedded

    def _gate(self, gate: Any, bias: Tensor) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
        plain = gate.forward

        def forward(hidden: Tensor, *ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            logits, weights, experts = plain(hidden, *ids)
            scores = gate.score_fn(logits[self.image])
            chosen = (scores + bias * self.biased).topk(gate.top_k, -1).indices
            share = scores.gather(1, chosen)
            experts[self.image] = chosen
            weights[self.image] = share / share.sum(-1, keepdim=True) * gate.routed_scaling_factor
            return logits, weights, experts

        return forward

    @torch.no_grad()
    def logits(self, prompt: Prompt) -> Tensor:
        """[tokens, vocab] in one pass without a cache."""
        ids, count = torch.tensor(prompt.ids), len(prompt.ids)
        self.image = ids >= VOCAB
        places = self.image.nonzero().flatten().tolist()
        self.rows = torch.stack([prompt.rows.get(at, self._learned(prompt.ids[at])) for at in places])
        query, key = torch.arange(count)[:, None], torch.arange(count)[None]
        seen = (key <= query) & (key > query - self.window)
        for start, end in prompt.blocks:
            seen[start:end, start:end] = True
        mask = torch.zeros(count, count).masked_fill(~seen, float("-inf"))[None, None]
        # The model takes the first mask of a mapping for all its layers.
        out = self.model(input_ids=ids.where(~self.image, 0)[None], attention_mask={"any": mask}, use_cache=False)
        return out.logits[0]

    def _learned(self, token: int) -> Tensor:
        return self.tensors.get(LEARNED[token - VOCAB], torch.zeros(0))


@pytest.fixture(scope="module")
def seeing() -> Seeing:
    return Seeing(tiny(KIND)[2])


def encoded(job: Job) -> Prompt:
    """The job with its pictures' rows in place."""
    tower, prompt = load_vision(tiny(KIND)[2], "cpu", torch.float32), Prompt(list(job.prompt.tokens))
    for span, picture in zip(job.prompt.spans, job.pictures, strict=True):
        rows = tower.encode([picture.pixels()])[0]
        prompt.rows |= {span.start_at + i: row for i, row in enumerate(rows)}
        prompt.blocks.append((span.start_at, span.end_at))
    return prompt


@pytest.mark.parametrize(("seed", "images"), [(1, 1), (2, 2), (3, 3), (4, 3)])
def test_logits_equal_the_emulation(seeing: Seeing, seed: int, images: int) -> None:
    model = tiny(KIND)[0]
    assert isinstance(model, DeepseekV4)
    prompt = encoded(make_v4_job(seed, images, 24))
    want = seeing.logits(prompt)
    got = in_chunks(Bench(model), prompt, [len(prompt.ids)])
    assert want.abs().max() > 2 and (got - want).abs().max() <= TOLERANCE
    ends = sorted({0, *(end for _, end in prompt.blocks), len(prompt.ids)})
    sizes = [b - a for a, b in pairwise(ends)]
    assert (in_chunks(Bench(model), prompt, sizes) - want).abs().max() <= TOLERANCE


def test_the_emulation_tells_every_rule(seeing: Seeing) -> None:
    """What would be missed without one of the three changes is far beyond the tolerance."""
    prompt = encoded(make_v4_job(2, 2, 24))
    want = seeing.logits(prompt)
    without = [
        seeing.logits(Prompt(prompt.ids, prompt.rows, [])),
        seeing.logits(Prompt(prompt.ids, dict.fromkeys(prompt.rows, torch.zeros(64)), prompt.blocks)),
    ]
    seeing.biased = False
    without.append(seeing.logits(prompt))
    seeing.biased = True
    assert min((other - want).abs().max() for other in without) > 0.1
