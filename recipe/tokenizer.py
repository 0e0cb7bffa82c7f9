"""The byte-level BPE tokenizer, its special tokens and the files a checkpoint folder needs for them.

Owns the vocabulary (2032 learned ids, then special tokens at fixed ids), the chat template and the generation and
preprocessor configs. Two ways to learn it: merges of any text, or (spelling) whole words for the wording of questions
and answers alone, so that a chart's own words are spelt letter by letter, as digits are. Promises single digits,
lossless round trips of any text, and placeholders as ids of their own. Refuses to render conversations:
`recipe.encode` builds ids from segments, a user's text is never searched.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

LEARNED = 2032
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<|mask|>",
)
PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if 'image' in part or 'image_url' in part or part.type == 'image' or part.type == 'image_url' %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif 'text' in part %}
{{- part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def train_tokenizer(
    texts: Iterable[str], learned: int = LEARNED, special: tuple[str, ...] = SPECIAL, plain: tuple[str, ...] = PLAIN
) -> Tokenizer:
    """A tokenizer of exactly `learned` ids from `texts`, special tokens after them (ids the same for equal texts).

    Those of the special tokens that are `plain` are shown in a text like any other.
    """
    tokenizer = _around(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=learned, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _finish(tokenizer, learned, special, plain)


def spelling_tokenizer(
    conversations: Iterable[Iterable[str]],
    learned: int = LEARNED,
    share: float = 0.01,
    special: tuple[str, ...] = SPECIAL,
    plain: tuple[str, ...] = PLAIN,
) -> Tokenizer:
    """Bytes, and as wholes the words that occur in at least `share` of the conversations; no merges at all."""
    cut = _around(models.BPE()).pre_tokenizer
    found: Counter[str] = Counter()
    total = 0
    for texts in conversations:
        total += 1
        found.update({piece for text in texts for piece, _ in cut.pre_tokenize_str(text) if len(piece) > 1})
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    wholes = sorted((word for word, n in found.items() if n >= share * total), key=lambda word: (-found[word], word))
    vocabulary = {piece: i for i, piece in enumerate([*alphabet, *wholes[: learned - len(alphabet)]])}
    return _finish(_around(models.BPE(vocabulary, [], ignore_merges=True)), learned, special, plain)


def _around(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _finish(tokenizer: Tokenizer, learned: int, special: tuple[str, ...], plain: tuple[str, ...]) -> Tokenizer:
    _fill(tokenizer, learned)
    tokenizer.add_tokens([AddedToken(t, special=t not in plain, normalized=False) for t in special])
    return tokenizer


def _fill(tokenizer: Tokenizer, learned: int) -> None:
    """Unused ids where the texts had too few merges, so that special ids never move."""
    missing = learned - tokenizer.get_vocab_size()
    if missing < 0:
        raise ValueError(f"the byte alphabet alone has more than {learned} ids")
    tokenizer.add_tokens([AddedToken(f"<|unused_{i}|>", normalized=False) for i in range(missing)])


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Special token to id."""
    added = tokenizer.get_added_tokens_decoder()
    return {token.content: i for i, token in added.items() if not token.content.startswith("<|unused_")}


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json, chat_template.jinja, generation and preprocessor configs."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = special_ids(tokenizer)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    _write(folder / "tokenizer_config.json", _tokenizer_config())
    ends = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    _write(folder / "generation_config.json", {"eos_token_id": ends, "pad_token_id": ends[1], "do_sample": False})
    _write(folder / "preprocessor_config.json", _preprocessor_config())


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": 8192,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": TEMPLATE,
    }


def _preprocessor_config() -> dict[str, object]:
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "size": {"shortest_edge": 65536, "longest_edge": 1048576},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "do_convert_rgb": True,
    }


def _write(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")
