"""What a block drafter's config.json says, in any of its spellings, as one frozen value.

Owns the reading and checking of z-lab's format (DFlash, DFlash2), DeepSpec's (DSpark) and speculators'. Raises
CheckpointError naming the field that is missing, contradictory or not computed here, and what does not fit the target.
Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foveate.core.errors import CheckpointError

SLIDING = "sliding_attention"
MARKOV_KINDS = ("vanilla", "gated", "rnn")


@dataclass(frozen=True, slots=True)
class Selector:
    """DFlash2's extras: taps and group of the dynamic convolution, rank and candidates of the selection head."""

    kernel: int
    group: int
    rank: int
    top_k: int


@dataclass(frozen=True, slots=True)
class Markov:
    """DSpark's extras: rank (0: none) and kind of the Markov head; a confidence head or not, and what it reads."""

    rank: int
    kind: str
    confident: bool
    confident_of_markov: bool


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """A block drafter.

    windows: per layer how far it sees, None for everywhere; causal: per layer whether its block is. layers: the
    target's layers whose outputs it reads, -1 for the embeddings. from_anchor: whether the anchor's slot guesses too.
    draft_vocab: None when it is the target's.
    """

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]
    vocab: int
    draft_vocab: int | None
    block: int
    mask_id: int
    layers: tuple[int, ...]
    from_anchor: bool
    embed_scale: float
    logit_scale: float
    softcap: float
    selector: Selector | None
    markov: Markov | None

    @property
    def depth(self) -> int:
        """Decoder layers."""
        return len(self.windows)

    @property
    def most_len(self) -> int:
        """Tokens that one block guesses."""
        return self.block if self.from_anchor else self.block - 1


class _Words:
    """Looks a field up in several objects, the first that has it."""

    def __init__(self, *places: Mapping[str, Any]) -> None:
        self._places = places

    def get(self, name: str, default: Any = None) -> Any:
        return next((place[name] for place in self._places if place.get(name) is not None), default)

    def need(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise CheckpointError(f"the drafter's config.json lacks {name}")
        return value


def draft_config(config: Mapping[str, Any]) -> DraftConfig:
    """The drafter of a config.json. Raises CheckpointError for what is missing or not supported."""
    foreign = config.get("speculators_model_type")
    trunk = config.get("transformer_layer_config") or config
    words = _Words(config.get("dflash_config") or {}, config, trunk)
    kind = _kind(config, words)
    if words.get("hidden_act", "silu") != "silu" or words.get("attention_bias", False):
        raise CheckpointError("the drafter's hidden_act must be silu and its attention without bias")
    vocab, heads, hidden = (int(words.need(name)) for name in ("vocab_size", "num_attention_heads", "hidden_size"))
    draft_vocab = int(words.get("draft_vocab_size", vocab)) if foreign else vocab
    windows, causal = _layers(words, foreign is not None)
    result = DraftConfig(
        hidden=hidden,
        inner=int(words.need("intermediate_size")),
        heads=heads,
        kv_heads=int(words.get("num_key_value_heads", heads)),
        head_dim=int(words.get("head_dim", hidden // heads)),
        eps=float(words.get("rms_norm_eps", 1e-6)),
        theta=_theta(words),
        windows=windows,
        causal=causal,
        vocab=vocab,
        draft_vocab=None if draft_vocab == vocab else draft_vocab,
        block=int(words.get("block_size", 16)),
        mask_id=int(words.need("mask_token_id")),
        layers=_target_layers(words, len(windows), foreign is not None),
        from_anchor=bool(words.get("sample_from_anchor", kind == "dspark")),
        embed_scale=float(words.get("input_embedding_scale", 1.0)),
        logit_scale=float(words.get("output_multiplier", 1.0)),
        softcap=float(words.get("final_logit_softcapping", 0.0)),
        selector=_selector(words) if kind == "dflash2" else None,
        markov=_markov(words) if kind == "dspark" else None,
    )
    if result.block < 2:
        raise CheckpointError(f"the drafter's block_size {result.block} leaves nothing to guess")
    return result


def _kind(config: Mapping[str, Any], words: _Words) -> str:
    foreign, names = config.get("speculators_model_type"), config.get("architectures") or []
    if foreign not in (None, "dflash", "dflash2", "dspark"):
        raise CheckpointError(f"speculators_model_type {foreign!r} is not supported (dflash, dflash2, dspark)")
    if words.get("projector_type", "dflash") != "dflash":
        raise CheckpointError(f"the drafter's projector_type {words.get('projector_type')!r} is not supported")
    if foreign is not None:
        return str(foreign)
    if any("dspark" in str(name).lower() for name in names):
        return "dspark"
    if words.get("selector_rank") is not None:
        return "dflash2"
    if any("dflash" in str(name).lower() for name in names):
        return "dflash"
    raise CheckpointError(f"the drafter's architectures {names} are not supported (DFlash, DFlash2, DSpark)")


def _theta(words: _Words) -> float:
    rope = words.get("rope_parameters") or words.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise CheckpointError("the drafter's rope must be the default one")
    return float(rope.get("rope_theta") or words.need("rope_theta"))


def _layers(words: _Words, foreign: bool) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """Window and causality of each layer; sliding ones are causal inside the block unless the config says otherwise."""
    count = int(words.need("num_hidden_layers"))
    types = words.get("layer_types") or ["full_attention"] * count
    if len(types) != count:
        raise CheckpointError(f"the drafter has {len(types)} layer_types for {count} layers")
    sliding = [kind == SLIDING for kind in types]
    window = int(words.need("sliding_window")) if any(sliding) else None
    both_ways = words.get("sliding_window_non_causal", False) if foreign else False
    said = words.get("is_causal")
    causal = [bool(said) if said is not None else slides and not both_ways for slides in sliding]
    return tuple(window if slides else None for slides in sliding), tuple(causal)


def _target_layers(words: _Words, depth: int, foreign: bool) -> tuple[int, ...]:
    named = words.get("target_layer_ids")
    if named is not None:
        return tuple(int(i) for i in named)
    if foreign:  # counted from the embeddings, so that 1 is the first layer's output
        return tuple(int(i) - 1 for i in words.need("aux_hidden_state_layer_ids"))
    count = int(words.need("num_target_layers"))
    if depth == 1:
        return (count // 2,)
    return tuple(round(1 + i * (count - 4) / (depth - 1)) for i in range(depth))


def _selector(words: _Words) -> Selector:
    names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    return Selector(*(int(words.need(name)) for name in names))


def _markov(words: _Words) -> Markov:
    kind = str(words.get("markov_head_type", "vanilla")).lower()
    if kind not in MARKOV_KINDS:
        raise CheckpointError(f"the drafter's markov_head_type {kind!r} is not one of {', '.join(MARKOV_KINDS)}")
    return Markov(
        rank=int(words.get("markov_rank", 0)),
        kind=kind,
        confident=bool(words.get("enable_confidence_head", False)),
        confident_of_markov=bool(words.get("confidence_head_with_markov", False)),
    )


def check_fit(config: DraftConfig, hidden: int, vocab: int, layers: int) -> None:
    """Raise CheckpointError unless the drafter reads a target of these sizes."""
    for name, own, target in (("hidden_size", config.hidden, hidden), ("vocab_size", config.vocab, vocab)):
        if own != target:
            raise CheckpointError(f"the drafter's {name} is {own}, but the model's is {target}")
    if wrong := [i for i in config.layers if not -1 <= i < layers]:
        raise CheckpointError(f"the drafter reads layer {wrong[0]}, but the model has {layers} layers")
    if config.mask_id >= vocab:
        raise CheckpointError(f"the drafter's mask_token_id {config.mask_id} is not in the vocabulary of {vocab}")
