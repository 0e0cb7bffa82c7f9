"""Settings: what a person may wish for, with defaults and help, and the frozen values they resolve to.

Owns every default, limit and environment read of the project. `Settings` is what flags fill (the CLI generates its
flags from these fields and their help); `resolve` turns it, once and by value, into a `Config` using what is known of
the model and the devices. Nothing assigns to either afterwards. Refuses to import torch: device facts come in as
plain numbers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from foveate.core.errors import ConfigError
from foveate.core.values import MAX_IMAGES

MIB = 2**20
MAX_JSON_DEPTH = 128  # the parser's own limit lies a little higher
KEY_VARIABLE = "FOVEATE_API_KEY"
LOAD_FORMATS = ("auto", "dummy")


def _option(default: Any, text: str, **extra: Any) -> Any:
    """A dataclass field that the CLI turns into a flag; `extra` may give `alias`, or `secret` for what is not shown."""
    return field(default=default, repr=not extra.get("secret", False), metadata={"help": text, **extra})


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """What a picture may be before anything is decoded."""

    image_bytes: int = 20 * MIB
    total_bytes: int = 64 * MIB
    image_pixels: int = 64 * MIB
    total_pixels: int = 256 * MIB
    max_side: int = 65_535
    aspect_ratio: int = 200
    images: int = MAX_IMAGES


@dataclass(frozen=True, slots=True)
class MediaPlaces:
    """Where pictures may come from besides the request itself, and how long that may take."""

    http: bool = True
    hosts: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    ports: tuple[int, ...] = (80, 443)
    folder: Path | None = None
    fetch_s: float = 10.0
    redirects: int = 3


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
    load_format: str = _option(
        "auto",
        "Weights: auto (the checkpoint's) or dummy (random ones of its dimensions; JSON files suffice).",
    )
    kernels: str = _option(
        "auto", "Operators of Qwen3.5's language model: auto (torch until Triton's are measured), torch or triton."
    )
    graphs: bool = _option(True, "Replay recorded decode steps where triton runs; off: launch each operator anew.")
    max_concurrency: int = _option(8, "Requests that run at once; further ones queue.")
    max_ctx: int = _option(0, "Longest prompt plus answer of a request, in tokens; 0 takes the model's, within memory.")
    kv_tokens: int = _option(0, "Tokens of key/value memory for all requests; 0: measured on a GPU, 32,768 on a CPU.")
    image_rows: int = _option(0, "Image rows kept at once for all requests; 0 derives it from max-ctx.")
    image_cache: bool = _option(
        True, "Keep rows that no request needs until others need the room: a picture sent again is not encoded again."
    )
    step_tokens: int = _option(0, "Most tokens one step runs; 0: 8,192 on a GPU, 2,048 on a CPU.")
    mixed_tokens: int = _option(0, "Most prompt tokens in a step that also decodes; 0: 2,048 on a GPU, 256 on a CPU.")
    page_len: int = _option(32, "Tokens per page of key/value memory.")
    draft: str = _option(
        "auto", "Drafter for speculative decoding: auto (what the checkpoint brings), PATH, mtp, ngram or none."
    )
    draft_len: int = _option(0, "Most tokens guessed ahead of a request; 0 takes the drafter's.")
    draft_tree: int = _option(0, "Most tokens guessed over all branches of a tree; 0 guesses single chains.")
    draft_adaptive: bool = _option(
        True, "Guess as far ahead as has paid off, for each request and load; off: always the most."
    )
    encoder_stream: bool = _option(True, "Prefill up to the first image that has not landed; off: wait for all images.")
    encoder_worker: str = _option("auto", "Where a separate encoder runs: auto, process or thread.")
    threads: int = _option(0, "CPU threads in all; 0 takes the cores this process may use.")
    encoder_threads: int = _option(0, "Of these, the encoder's when it has the CPU to itself; 0 takes half.")
    decode_workers: int = _option(
        0, "Threads that decode pictures; 0: one per core beside a GPU, 16 at most, else one per four cores."
    )
    queue_requests: int = _option(256, "Requests that may wait; beyond it 503.")
    queue_image_rows: int = _option(1_048_576, "Image rows that may wait; beyond it 503.")
    queue_mib: int = _option(1024, "MiB of pictures that may wait; beyond it 503.")
    bypass: int = _option(8, "How many later requests may start before one that does not fit yet.")
    max_images: int = _option(MAX_IMAGES, f"Pictures of one request, {MAX_IMAGES} at most.")
    max_image_mib: int = _option(20, "Largest encoded picture, in MiB; a fetched one is cut off there.")
    max_images_mib: int = _option(64, "Encoded pictures of one request together, in MiB.")
    max_image_mpix: int = _option(64, "Largest picture in Mi pixels, read from its header.")
    max_images_mpix: int = _option(256, "Pictures of one request together, in Mi pixels.")
    max_image_side: int = _option(65_535, "Longest side of a picture, in pixels.")
    max_image_aspect: int = _option(200, "Most that the longer side of a picture may measure of the shorter one.")
    min_free_mib: int = _option(512, "Host memory to leave free, in MiB; requests with pictures get 503 below it.")
    allow_http: bool = _option(True, "Fetch pictures from http and https URLs, from global addresses only.")
    allowed_media_hosts: str = _option(
        "", "Comma-separated host names that pictures may come from, .example.com for all below it; empty: any."
    )
    allowed_media_networks: str = _option(
        "", "Comma-separated address ranges (10.1.0.0/16) that may be fetched from although they are not global."
    )
    allowed_media_ports: str = _option("80,443", "Comma-separated ports that pictures may be fetched from.")
    media_path: str = _option("", "Folder below which file: URLs may name pictures; empty: none.")
    fetch_s: float = _option(10.0, "Seconds for fetching a picture, from the name lookup to the last byte.")
    fetch_redirects: int = _option(3, "Redirects that are followed while fetching; each is checked again.")
    max_body_mib: int = _option(100, "Largest request body, in MiB.")
    max_json_depth: int = _option(64, f"Levels of nesting in a request body, {MAX_JSON_DEPTH} at most.")
    body_s: float = _option(600.0, "Seconds for a whole request body to arrive.")
    read_stall_s: float = _option(30.0, "Seconds that a client may pause while its request body is read.")
    send_stall_s: float = _option(30.0, "Seconds that a client may take nothing of what is sent before it is dropped.")
    api_key: str = _option(
        "",
        f"API keys, comma-separated, or @FILE with one a line; {KEY_VARIABLE} is read when empty. None: open to all.",
        secret=True,
    )
    cors_origins: str = _option("*", "Comma-separated origins whose pages may ask; * for all, empty for none.")
    encode_timeout_s: float = _option(300.0, "Seconds after which an encoder that does not answer counts as hung.")
    shutdown_s: float = _option(20.0, "Seconds that running requests get to finish on shutdown.")
    inject_fault: str = _option("", "For tests of failures: KIND:N makes the N-th encode, step or guess fail.")
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
    """What the machine offers: usable cores, CUDA devices and, when asked, tokens of key/value memory that fit.

    triton: whether it is installed.
    """

    cores: int
    cuda_count: int = 0
    kv_tokens: int | None = None
    triton: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """The resolved settings: every number concrete, every 'auto' decided. Logged whole at start."""

    settings: Settings
    name: str
    device: str
    encoder_device: str
    encoder_worker: str
    dtype: str
    kernels: str
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
    media: MediaPlaces

    @property
    def encoder_apart(self) -> bool:
        """Whether the encoder works beside the language model and not in turn with it."""
        return self.encoder_worker != "inline"

    def as_dict(self) -> dict[str, Any]:
        """All values, nested, as JSON-ready types; of a secret only whether it is set."""
        values = asdict(self)
        for f in fields(Settings):
            if f.metadata.get("secret") and values["settings"][f.name]:
                values["settings"][f.name] = "(set)"
        values["media"]["folder"] = None if self.media.folder is None else str(self.media.folder)
        return values


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


def api_keys(settings: Settings, environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The keys of which a client must send one; none means that no key is asked for.

    `environment` stands in for the process's own. Raises ConfigError for a file that cannot be read or holds no key.
    """
    wish = settings.api_key or (os.environ if environment is None else environment).get(KEY_VARIABLE, "")
    if not wish.startswith("@"):
        return words(wish)
    try:
        lines = Path(wish[1:]).expanduser().read_text("utf-8").splitlines()
    except (OSError, ValueError):
        raise ConfigError("the file that api-key names cannot be read") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise ConfigError("the file that api-key names holds no key")
    return keys


def words(text: str) -> tuple[str, ...]:
    """The words of a comma-separated list."""
    return tuple(word for part in text.split(",") if (word := part.strip()))


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
        # On one CPU all cores in turn bring the first token earlier than a fixed share for each (docs/adr/0004).
        # Who asks for a worker or threads of the encoder's own wants it apart.
        own = device == "cpu" and (settings.encoder_worker != "auto" or settings.encoder_threads)
        wish = spare or ("cpu" if own else "same")
    if settings.encoder_worker not in ("auto", "process", "thread"):
        raise ConfigError(f"unknown encoder worker: {settings.encoder_worker} (auto, process or thread)")
    place = device if wish == "same" else device_of(wish, facts.cuda_count)
    if wish == "same":
        if settings.encoder_worker != "auto" or settings.encoder_threads:
            raise ConfigError("encoder-worker and encoder-threads need an encoder that works apart (mmproj-device)")
        return place, "inline"
    if settings.encoder_worker == "auto":
        return place, "process" if place == "cpu" else "thread"  # docs/adr/0004: by measured step jitter
    return place, settings.encoder_worker


def _kernels(wish: str, gpu: bool, facts: DeviceFacts) -> str:
    """'torch' or 'triton'."""
    if wish not in ("auto", "torch", "triton"):
        raise ConfigError(f"unknown kernels: {wish} (auto, torch or triton)")
    if wish == "triton" and not gpu:
        raise ConfigError("kernels triton needs a language model on a CUDA device")
    if wish == "triton" and not facts.triton:
        raise ConfigError("kernels triton asked for, but triton is not installed")
    return "triton" if wish == "triton" else "torch"  # auto: docs/adr/0008, until they have run on a GPU


def _split_threads(settings: Settings, shared_cpu: bool, facts: DeviceFacts) -> tuple[int, int]:
    """CPU threads for the language model and for the encoder; disjoint when both live on one CPU."""
    total = settings.threads or facts.cores
    if not shared_cpu:
        return total, settings.encoder_threads or total
    encoder = settings.encoder_threads or max(1, total // 2)
    if total > 1 and encoder >= total:
        raise ConfigError(f"encoder-threads {encoder} leaves none of {total} threads to the language model")
    return max(1, total - encoder), encoder


def _decoders(encoder_place: str, cores: int) -> int:
    """Threads that decode: as many as a request may have pictures where the cores have nothing else to do."""
    return min(cores, MAX_IMAGES) if encoder_place != "cpu" else max(1, cores // 4)


def _media_places(settings: Settings) -> MediaPlaces:
    networks, ports = words(settings.allowed_media_networks), words(settings.allowed_media_ports)
    for network in networks:
        try:
            ip_network(network)
        except ValueError:
            raise ConfigError(f"allowed-media-networks: {network} is not an address range") from None
    for port in ports:
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
            raise ConfigError(f"allowed-media-ports: {port} is not a port")
    folder = Path(settings.media_path).expanduser() if settings.media_path else None
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"media-path {settings.media_path} is not a folder")
    return MediaPlaces(
        http=settings.allow_http,
        hosts=words(settings.allowed_media_hosts),
        networks=networks,
        ports=tuple(int(port) for port in ports),
        folder=folder,
        fetch_s=settings.fetch_s,
        redirects=settings.fetch_redirects,
    )


def _check_numbers(settings: Settings) -> None:
    positive = {"max_concurrency", "page_len", "queue_requests", "max_body_mib", "max_image_mib", "max_images_mib"}
    positive |= {"max_images", "max_image_mpix", "max_images_mpix", "max_image_side", "max_image_aspect"}
    positive |= {"max_json_depth", "body_s", "read_stall_s", "send_stall_s", "fetch_s", "encode_timeout_s"}
    for name, most in (("max_images", MAX_IMAGES), ("max_json_depth", MAX_JSON_DEPTH), ("port", 65_535)):
        if getattr(settings, name) > most:
            raise ConfigError(f"{name.replace('_', '-')} may be {most} at most, got {getattr(settings, name)}")
    for f in fields(Settings):
        value = getattr(settings, f.name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if not math.isfinite(value) or value < 0 or (f.name in positive and value == 0):
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
    if settings.log_level not in ("debug", "info", "warning", "error"):
        raise ConfigError(f"unknown log level: {settings.log_level} (debug, info, warning or error)")
    if settings.dtype not in ("auto", "float32", "bfloat16"):
        raise ConfigError(f"unknown dtype: {settings.dtype} (auto, float32 or bfloat16)")
    if settings.load_format not in LOAD_FORMATS:
        raise ConfigError(f"unknown load format: {settings.load_format} ({' or '.join(LOAD_FORMATS)})")
    # More than every slot can fill is of no use, however much a GPU could hold.
    measured = device.kv_tokens and min(device.kv_tokens, settings.max_concurrency * model.max_positions)
    kv_tokens = settings.kv_tokens or measured or 32_768
    max_ctx = min(settings.max_ctx or model.max_positions, model.max_positions, kv_tokens)
    step_tokens = settings.step_tokens or (8_192 if gpu else 2_048)
    return Config(
        settings=settings,
        name=settings.name or model.name,
        device=place,
        encoder_device=encoder_place,
        encoder_worker=worker,
        dtype=("bfloat16" if gpu else "float32") if settings.dtype == "auto" else settings.dtype,
        kernels=_kernels(settings.kernels, gpu, device),
        slots=settings.max_concurrency,
        max_ctx=max_ctx,
        page_len=settings.page_len,
        pages=-(-kv_tokens // settings.page_len),
        image_rows=settings.image_rows or max(2 * max_ctx, model.largest_image_rows),
        step_tokens=step_tokens,
        mixed_tokens=min(settings.mixed_tokens or (2_048 if gpu else 256), step_tokens),
        model_threads=model_threads,
        encoder_threads=encoder_threads,
        decode_workers=settings.decode_workers or _decoders(encoder_place, device.cores),
        pictures=PictureLimits(
            image_bytes=settings.max_image_mib * MIB,
            total_bytes=settings.max_images_mib * MIB,
            image_pixels=settings.max_image_mpix * MIB,
            total_pixels=settings.max_images_mpix * MIB,
            max_side=settings.max_image_side,
            aspect_ratio=settings.max_image_aspect,
            images=settings.max_images,
        ),
        media=_media_places(settings),
    )
