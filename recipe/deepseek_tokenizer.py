"""The special tokens of DeepSeek V4's chat format, and the files a checkpoint folder needs for its tokenizer.

Owns their order behind the learned ids. The vocabulary itself is learned as the Qwen reader's is; there is no chat
template, because the released folders bring none and a server knows the family's. Refuses to render conversations.
"""

from pathlib import Path

from tokenizers import Tokenizer

from recipe.export import write_json

SPECIAL = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "<｜deepseek_image｜>",
    "<｜noise｜>",
    "｜DSML｜",
)
SHOWN = ("<think>", "</think>", "｜DSML｜")  # ordinary to a decoder


def save_block_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json and generation_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    begin, end = SPECIAL[:2]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": end,
        "pad_token": end,
        "unk_token": None,
        "model_max_length": 8192,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
    }
    write_json(folder / "tokenizer_config.json", config)
    stop = tokenizer.token_to_id(end)
    write_json(folder / "generation_config.json", {"eos_token_id": stop, "pad_token_id": stop, "do_sample": False})
