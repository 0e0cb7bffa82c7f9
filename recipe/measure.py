"""Scores a checkpoint folder through transformers: `python -m recipe.measure FOLDER --set charts220 ...`.

Owns an evaluation that shares no code with the server: transformers' `generate` (greedy) on the held-out sets, and the
drafters' tokens per verification on the model's own descriptions. Promises one JSON line a set. Needs transformers,
which neither training nor the server does.
"""

import argparse
import json
import random
import time
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer

from recipe.accept import Checkpoint, replay
from recipe.encode import Encoder
from recipe.packs import PackShape, fill_pack
from recipe.staging import StaticPack

EVAL = Path(__file__).parent.parent / "foveate" / "demo" / "eval"


class Reader:
    """One checkpoint in transformers, fp32 on the CPU."""

    def __init__(self, folder: Path) -> None:
        from transformers import Qwen3_5ForConditionalGeneration
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self.model = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self.processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.encoder = Encoder(self.tokenizer)
        self.pad = self.tokenizer.token_to_id("<|image_pad|>")

    def prompt(self, sizes: list[tuple[int, int]], question: str) -> list[int]:
        """Ids of one user message: pictures first, then the question."""
        charts = [SimpleNamespace(size=size) for size in sizes]
        parts = [*(("image", i) for i in range(len(sizes))), ("text", question)]
        e = self.encoder
        return [*e.user, *e.question(parts, charts), e.end, *e.newline, *e.assistant]

    @torch.no_grad()
    def answer(self, images: list[Image.Image], question: str, longest: int = 400) -> list[int]:
        """Greedy ids of the answer, its end token included."""
        inputs: dict[str, Any] = {}
        sizes: list[tuple[int, int]] = []
        if images:
            seen = self.processor(images=images, return_tensors="pt")
            inputs = {"pixel_values": seen["pixel_values"], "image_grid_thw": seen["image_grid_thw"]}
            sizes = [(int(w) * 16, int(h) * 16) for _, h, w in seen["image_grid_thw"].tolist()]
        ids = torch.tensor([self.prompt(sizes, question)])
        kinds = (ids == self.pad).int()
        self.model.model.rope_deltas = None
        out = self.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=kinds, max_new_tokens=longest,
            do_sample=False, **inputs,
        )  # fmt: skip
        return out[0, ids.shape[1] :].tolist()  # type: ignore[no-any-return]


def same(said: str, wanted: str, numeric: bool) -> bool:
    """Equal up to case, spaces and a final stop; numbers within 5 %."""
    said, wanted = (text.strip().rstrip(".").casefold() for text in (said, wanted))
    if said == wanted or not numeric:
        return said == wanted
    try:
        got, want = (float(text.strip("$€£%").split()[0].strip("$€£%")) for text in (said, wanted))
    except (ValueError, IndexError):
        return False
    return abs(got - want) <= 0.05 * abs(want)


def score(reader: Reader, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One set: right by kind and by number of pictures, and the wrong answers."""
    began, exact = time.monotonic(), 0
    good: dict[str, Counter[str]] = {"kinds": Counter(), "images": Counter()}
    total: dict[str, Counter[str]] = {"kinds": Counter(), "images": Counter()}
    wrong = []
    for row in rows:
        images = [Image.open(EVAL / image).convert("RGB") for image in row["images"]]
        said = reader.tokenizer.decode(reader.answer(images, row["question"]))
        right = same(said, row["answer"], row.get("numeric", False))
        exact += said.strip() == row["answer"].strip()
        for table, key in (("kinds", row["kind"]), ("images", str(len(images)))):
            total[table][key] += 1
            good[table][key] += right
        if not right:
            wrong.append({"id": row["id"], "question": row["question"], "answer": row["answer"], "said": said})
    tables = {t: {k: [good[t][k], n] for k, n in sorted(total[t].items())} for t in total}
    seconds = round(time.monotonic() - began, 1)
    head = {"set": name, "questions": len(rows), "right": sum(good["images"].values()), "exact": exact}
    return {**head, "seconds": seconds, **tables, "wrong": wrong}


def accepted(folder: Path, reader: Reader, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean tokens per verification of both drafters over the model's own answers, weighted by their length."""
    checkpoint, mask = Checkpoint(folder), reader.tokenizer.token_to_id("<|mask|>")
    sums = np.zeros(2)
    tokens = 0
    for row in rows:
        images = [Image.open(EVAL / image).convert("RGB") for image in row["images"]]
        ids = reader.answer(images, row["question"])
        if len(ids) < 3:
            continue
        text = reader.tokenizer.decode(ids)
        charts = [SimpleNamespace(image=image, glyphs=()) for image in images]
        parts = [*(("image", i) for i in range(len(images))), ("text", row["question"])]
        turn = SimpleNamespace(question=row["question"], answer=text, kind="describe")
        drawn = SimpleNamespace(charts=charts, turns=[turn], parts=parts)
        shape = PackShape(rows=1, row=2048, patches=4864, labels=1024, images=64, segments=8)
        buffer = bytearray(shape.nbytes)
        fill_pack(shape, reader.encoder, partial(_given, drawn), "0", shape.view(buffer), limit=1)
        static = StaticPack(shape, torch.device("cpu"))
        static.load(np.frombuffer(buffer, np.uint8))
        per_step = np.array(replay(checkpoint, static, mask))
        sums += (len(ids) - 1) / per_step  # verifications
        tokens += len(ids) - 1
    dflash, mtp = (tokens / sums).round(3).tolist()
    return {"set": "accepted", "answers": len(rows), "tokens": tokens, "dflash": dflash, "mtp": mtp}


def _given(drawn: Any, _: random.Random) -> Any:
    return drawn


def main() -> None:
    """Score the named sets."""
    parser = argparse.ArgumentParser(prog="python -m recipe.measure", description="Score a checkpoint by transformers.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", action="append", default=[], help="a set of foveate/demo/eval, or `accepted`")
    parser.add_argument("--limit", type=int, default=0, help="first rows only (0: all)")
    args = parser.parse_args()
    reader = Reader(args.folder)
    for name in args.set:
        path = EVAL / f"{'describe100' if name == 'accepted' else name}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()][: args.limit or None]
        print(json.dumps(accepted(args.folder, reader, rows) if name == "accepted" else score(reader, name, rows)))


if __name__ == "__main__":
    main()
