"""The same questions through transformers' `generate`: the yardstick for `foveate eval charts`.

Owns loading a checkpoint folder with transformers and greedy decoding, one question at a time. Promises the PIL image
processor, float32, and the same sets, scoring and report as the command line's. Refuses speed claims: it is an oracle.

    python bench/eval_transformers.py foveate/demo --set charts --out answers.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, Qwen3_5ForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from foveate.evals.charts import SETS, Ask, Plan, print_report, run

PAD, END = "<|image_pad|>", "<|im_end|>"


class Reference:
    """A checkpoint folder, asked through transformers."""

    def __init__(self, folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.device = device
        self.model = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=dtype).to(device).eval()
        self.images = Qwen2VLImageProcessorPil.from_pretrained(folder)
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(str(folder / "tokenizer.json")))
        self.template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        self.end = self.tokenizer.convert_tokens_to_ids(END)
        self.pad = self.tokenizer.convert_tokens_to_ids(PAD)

    @torch.inference_mode()
    def answer(self, question: str, paths: Sequence[Path], max_tokens: int = 320) -> str:
        """The greedy answer, special tokens left out."""
        content = [{"type": "image"} for _ in paths] + [{"type": "text", "text": question}]
        prompt = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            chat_template=self.template,
            tokenize=False,
            add_generation_prompt=True,
        )
        inputs = {}
        if paths:
            pictures = [Image.open(path).convert("RGB") for path in paths]
            inputs = dict(self.images(images=pictures, return_tensors="pt"))
            for grid in inputs["image_grid_thw"]:
                prompt = prompt.replace(PAD, "<|filled|>" * int(grid.prod() // 4), 1)
            prompt = prompt.replace("<|filled|>", PAD)
        ids = self.tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
        kinds = (ids == self.pad).long()
        inputs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": kinds}
        inputs = {name: tensor.to(self.device) for name, tensor in inputs.items()}
        made = self.model.generate(
            **inputs, max_new_tokens=max_tokens, do_sample=False, eos_token_id=self.end, pad_token_id=self.end
        )
        return self.tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True).strip()

    def asker(self) -> Ask:
        """An `ask` for the evaluation loop."""

        async def ask(question: str, paths: Sequence[Path]) -> str:
            await asyncio.sleep(0)
            return self.answer(question, paths)

        return ask


def main() -> None:
    """Runs one set and prints the report."""
    parser = argparse.ArgumentParser(description="Score a checkpoint folder through transformers.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", default="charts", choices=sorted(SETS))
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--against", type=Path, default=None)
    options = parser.parse_args()
    asker = Reference(options.folder, options.device).asker()
    plan = Plan(options.set, concurrency=1, limit=options.limit, out=options.out, against=options.against)
    print_report(asyncio.run(run(plan, asker)))


if __name__ == "__main__":
    main()
