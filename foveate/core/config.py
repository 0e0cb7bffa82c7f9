"""Settings: what a person may wish for, with defaults and help, and the frozen values they resolve to.

Owns every default, limit and environment read of the project. `Settings` is what flags fill (the CLI generates its
flags from these fields and their help); `resolve` turns it, once and by value, into a `Config` using what is known of
the model and the devices. Nothing assigns to either afterwards. Refuses to import torch: device facts come in as
plain numbers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from foveate.core.errors import ConfigError

MIB = 2**20


def _option(default: Any, text: str, **extra: Any) -> Any:
    """A dataclass field that the CLI turns into a flag; `extra` may give `alias` or `choices`."""
    return field(default=default, metadata={"help": text, **extra})


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """What a picture may be before anything is decoded."""

    image_bytes: int = 20 * MIB
    total_bytes: int = 64 * MIB
    image_pixels: int = 64 * MIB
    total_pixels: int = 256 * MIB
    max_side: int = 65_535
    aspect_ratio: int = 200


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a person can set; `foveate serve --print-config` shows how it resolved."""

    host: str = _option("127.0.0.1", "Address to listen on.")
    port: int = _option(8000, "Port to listen on; 0 takes a free one.")
    name: str = _option("", "Name under which the model is served; empty takes the folder's or hub id's.")
    device: str = _option("auto", "Device of the language model: auto, cpu or cuda:N.")
    mmproj_device: str = _option(
        "auto",
        "Device of the vision encoder: auto, same (as the language model), cpu or cuda:N.",
        alias="encoder-device",
    )
    dtype: str = _option(
        "auto", "Weights and activations: auto (float32 on a CPU, bfloat16 on a GPU), float32, bfloat16."
    )
    max_concurrency: int = _option(8, "Requests that run at once; further ones queue.")
    max_ctx: int = _option(0, "Longest prompt plus answer of a request, in tokens; 0 takes the model's, within memory.")
    kv_tokens: int = _option(0, "Tokens of key/value memory for all requests; 0: measured on a GPU, 32,768 on a CPU.")
    image_rows: int = _option(0, "Image rows kept at once for all requests; 0 derives it from max-ctx.")
    step_tokens: int = _option(0, "Most tokens one step runs; 0: 8,192 on a GPU, 2,048 on a CPU.")
    mixed_tokens: int = _option(0, "Most prompt tokens in a step that also decodes; 0: 2,048 on a GPU, 256 on a CPU.")
    page_len: int = _option(32, "Tokens per page of key/value memory.")
    encoder_stream: bool = _option(True, "Prefill up to the first image that has not landed; off: wait for all images.")
    encoder_worker: str = _option("auto", "Where a separate encoder runs: auto, process or thread.")
    threads: int = _option(0, "CPU threads in all; 0 takes the cores this process may use.")
    encoder_threads: int = _option(0, "Of these, the encoder's when it has the CPU to itself; 0 takes half.")
    decode_workers: int = _option(0, "Threads that decode pictures; 0: one per four cores, at least one.")
    queue_requests: int = _option(256, "Requests that may wait; beyond it 503.")
    queue_image_rows: int = _option(1_048_576, "Image rows that may wait; beyond it 503.")
    queue_mib: int = _option(1024, "MiB of pictures that may wait; beyond it 503.")
    bypass: int = _option(8, "How many later requests may start before one that does not fit yet.")
    max_image_mib: int = _option(20, "Largest encoded picture, in MiB.")
    max_images_mib: int = _option(64, "Encoded pictures of one request together, in MiB.")
    max_image_mpix: int = _option(64, "Largest picture in Mi pixels, read from its header.")
    max_images_mpix: int = _option(256, "Pictures of one request together, in Mi pixels.")
    max_body_mib: int = _option(100, "Largest request body, in MiB.")
    shutdown_s: float = _option(20.0, "Seconds that running requests get to finish on shutdown.")
    log_level: str = _option("info", "Log level: debug, info, warning or error.")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a checkpoint says of itself, in plain numbers."""

    name: str
    max_positions: int
    has_vision: bool
    largest_image_rows: int


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What the machine offers: usable cores, CUDA devices and, when asked, tokens of key/value memory that fit."""

    cores: int
    cuda_count: int = 0
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """The resolved settings: every number concrete, every 'auto' decided. Logged whole at start."""

    settings: Settings
    name: str
    device: str
    encoder_device: str
    encoder_worker: str
    dtype: str
    slots: int
    max_ctx: int
    page_len: int
    pages: int
    image_rows: int
    step_tokens: int
    mixed_tokens: int
    model_threads: int
    encoder_threads: int
    decode_workers: int
    pictures: PictureLimits

    @property
    def encoder_apart(self) -> bool:
        """Whether the encoder works beside the language model and not in turn with it."""
        return self.encoder_worker != "inline"

    def as_dict(self) -> dict[str, Any]:
        """All values, nested, as JSON-ready types."""
        return asdict(self)


def usable_cores() -> int:
    """Cores this process may run on (its affinity mask, where the system has one)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def settings_from(values: Mapping[str, Any]) -> Settings:
    """Settings from a mapping of field names; an unknown name is a ConfigError."""
    known = {f.name for f in fields(Settings)}
    for name in values:
        if name not in known:
            raise ConfigError(f"unknown setting: {name}")
    return replace(Settings(), **values)


def device_of(wish: str, cuda_count: int) -> str:
    """'cpu' or 'cuda:N' for a wish; ConfigError when the machine has no such device."""
    if wish == "auto":
        return "cuda:0" if cuda_count else "cpu"
    name = "cuda:0" if wish == "cuda" else wish
    if name == "cpu":
        return name
    kind, _, index = name.partition(":")
    if kind != "cuda" or not index.isdigit():
        raise ConfigError(f"unknown device: {wish} (auto, cpu or cuda:N)")
    if int(index) >= cuda_count:
        raise ConfigError(f"device {wish} asked for, but this machine shows {cuda_count} CUDA device(s)")
    return name


def _place_encoder(settings: Settings, device: str, facts: DeviceFacts) -> tuple[str, str]:
    """Device of the encoder and how it runs there: 'inline', 'thread' or 'process'."""
    wish = settings.mmproj_device
    if wish == "auto":
        spare = next((f"cuda:{i}" for i in range(facts.cuda_count) if f"cuda:{i}" != device), None)
        # One CPU with two cores or more: half of them encode while the other half prefills (docs/adr/0004).
        wish = spare or ("cpu" if device == "cpu" and facts.cores >= 2 else "same")
    place = device if wish == "same" else device_of(wish, facts.cuda_count)
    if wish == "same":
        return place, "inline"
    if settings.encoder_worker not in ("auto", "process", "thread"):
        raise ConfigError(f"unknown encoder worker: {settings.encoder_worker} (auto, process or thread)")
    if settings.encoder_worker == "auto":
        return place, "process" if place == "cpu" else "thread"  # docs/adr/0004: by measured step jitter
    return place, settings.encoder_worker


def _split_threads(settings: Settings, shared_cpu: bool, facts: DeviceFacts) -> tuple[int, int]:
    """CPU threads for the language model and for the encoder; disjoint when both live on one CPU."""
    total = settings.threads or facts.cores
    if not shared_cpu:
        return total, settings.encoder_threads or total
    encoder = settings.encoder_threads or max(1, total // 2)
    if total > 1 and encoder >= total:
        raise ConfigError(f"encoder-threads {encoder} leaves none of {total} threads to the language model")
    return max(1, total - encoder), encoder


def _check_numbers(settings: Settings) -> None:
    positive = ("max_concurrency", "page_len", "queue_requests", "max_body_mib", "max_image_mib", "max_images_mib")
    for f in fields(Settings):
        value = getattr(settings, f.name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if value < 0 or (f.name in positive and value == 0):
            raise ConfigError(f"{f.name.replace('_', '-')} must be positive, got {value}")


def resolve(settings: Settings, model: ModelFacts, device: DeviceFacts) -> Config:
    """The one place where wishes, model facts and device facts meet. Raises ConfigError with the reason."""
    _check_numbers(settings)
    place = device_of(settings.device, device.cuda_count)
    gpu = place != "cpu"
    encoder_place, worker = _place_encoder(settings, place, device)
    model_threads, encoder_threads = _split_threads(
        settings, encoder_place == place == "cpu" and worker != "inline", device
    )
    if settings.dtype not in ("auto", "float32", "bfloat16"):
        raise ConfigError(f"unknown dtype: {settings.dtype} (auto, float32 or bfloat16)")
    kv_tokens = settings.kv_tokens or device.kv_tokens or 32_768
    max_ctx = min(settings.max_ctx or model.max_positions, model.max_positions, kv_tokens)
    step_tokens = settings.step_tokens or (8_192 if gpu else 2_048)
    return Config(
        settings=settings,
        name=settings.name or model.name,
        device=place,
        encoder_device=encoder_place,
        encoder_worker=worker,
        dtype=("bfloat16" if gpu else "float32") if settings.dtype == "auto" else settings.dtype,
        slots=settings.max_concurrency,
        max_ctx=max_ctx,
        page_len=settings.page_len,
        pages=-(-kv_tokens // settings.page_len),
        image_rows=settings.image_rows or max(2 * max_ctx, model.largest_image_rows),
        step_tokens=step_tokens,
        mixed_tokens=min(settings.mixed_tokens or (2_048 if gpu else 256), step_tokens),
        model_threads=model_threads,
        encoder_threads=encoder_threads,
        decode_workers=settings.decode_workers or max(1, device.cores // 4),
        pictures=PictureLimits(
            image_bytes=settings.max_image_mib * MIB,
            total_bytes=settings.max_images_mib * MIB,
            image_pixels=settings.max_image_mpix * MIB,
            total_pixels=settings.max_images_mpix * MIB,
        ),
    )
