"""transformers on the same folder, on the same questions: the baseline that anyone can repeat.

Owns loading a folder with transformers (or, without weights in it, random ones of its dimensions) and two clocks: time
to the first token over the image ladder, from encoded pictures in memory, and tokens a second of one text stream. The
pictures, texts and medians are those of `foveate bench`. Everything is decoded, encoded and prefilled in turn, which is
how `generate` works. Prints one JSON line.

    python bench/transformers_baseline.py /tmp/qwen3_5-4b --device cuda:0 --dtype bfloat16
"""

from __future__ import annotations

import argparse
import io
import json
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, Qwen3_5ForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from foveate.bench.record import record, summed
from foveate.bench.ttft import TEXT, Plan, questions
from foveate.ops.attention import leave_out_cudnn

PAD, FILLED = "<|image_pad|>", "<|filled|>"


class Baseline:
    """A folder through transformers, asked one request at a time."""

    def __init__(self, folder: Path, device: str, dtype: torch.dtype) -> None:
        self.device = device
        if any(folder.glob("*.safetensors")):
            self.model = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=dtype).to(device)
        else:
            config = transformers.AutoConfig.from_pretrained(folder)
            with torch.device(device):
                self.model = Qwen3_5ForConditionalGeneration._from_config(config, dtype=dtype)
        self.model.eval()
        self.images = Qwen2VLImageProcessorPil.from_pretrained(folder)
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(str(folder / "tokenizer.json")))
        self.template = (folder / "chat_template.jinja").read_text("utf-8")
        self.pad = self.tokenizer.convert_tokens_to_ids(PAD)

    @torch.inference_mode()
    def answer(self, text: str, pictures: tuple[bytes, ...], tokens: int) -> tuple[float, int]:
        """Seconds from encoded pictures to exactly so many tokens, and the length of the prompt."""
        began_s = time.monotonic()
        content: list[dict[str, Any]] = [{"type": "image"} for _ in pictures]
        message = {"role": "user", "content": [*content, {"type": "text", "text": text}]}
        prompt = self.tokenizer.apply_chat_template(
            [message], chat_template=self.template, tokenize=False, add_generation_prompt=True
        )
        inputs: dict[str, Any] = {}
        if pictures:
            opened = [Image.open(io.BytesIO(png)).convert("RGB") for png in pictures]
            inputs = dict(self.images(images=opened, return_tensors="pt"))
            for grid in inputs["image_grid_thw"]:
                prompt = prompt.replace(PAD, FILLED * int(grid.prod() // 4), 1)
            prompt = prompt.replace(FILLED, PAD)
        ids = self.tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
        inputs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        inputs |= {"mm_token_type_ids": (ids == self.pad).long()}
        inputs = {name: value.to(self.device) for name, value in inputs.items()}
        self.model.model.rope_deltas = None  # it would carry over from the request before
        limits = {"max_new_tokens": tokens, "min_new_tokens": tokens, "eos_token_id": None, "pad_token_id": 0}
        made = self.model.generate(**inputs, **limits, do_sample=False)
        assert made.shape[1] == ids.shape[1] + tokens, "another number of tokens than asked for"
        made.cpu()
        return time.monotonic() - began_s, ids.shape[1]


def main() -> None:
    """Measure and print."""
    leave_out_cudnn()  # as in foveate
    parser = argparse.ArgumentParser(description="Time transformers on a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--ladder", default="1,4,8,16")
    parser.add_argument("--pictures", default="charts")
    parser.add_argument("--size", default="")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args()
    began_s = time.monotonic()
    baseline = Baseline(options.folder, options.device, getattr(torch, options.dtype))
    out: dict[str, Any] = {"bench": "transformers", "version": transformers.__version__}
    out |= {"load_s": round(time.monotonic() - began_s, 2), "first_token_s": {}, "prompt_tokens": {}}
    plan = Plan(repeats=options.repeats, pictures=options.pictures, size=options.size)
    for images in (int(word) for word in options.ladder.split(",")):
        shots = [baseline.answer(TEXT, question.pictures, 1) for question in questions(plan, images)][1:]
        out["first_token_s"][images] = summed([took_s for took_s, _ in shots])
        out["prompt_tokens"][images] = shots[0][1]
    story = "Tell a long story about number {}."
    first_s = [baseline.answer(story.format(n), (), 1)[0] for n in range(options.repeats + 1)][1:]
    whole_s = [baseline.answer(story.format(n), (), options.tokens)[0] for n in range(options.repeats + 1)][1:]
    rates = [(options.tokens - 1) / (whole - first) for whole, first in zip(whole_s, first_s, strict=True)]
    out["text_decode_tok_s"] = summed(rates)
    names = [torch.cuda.get_device_name(options.device)] if options.device.startswith("cuda") else []
    print(json.dumps(out | {"record": record(names)}))


if __name__ == "__main__":
    main()
