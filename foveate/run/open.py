"""Opens what a config describes: the language model with its memory, and the encoder where it was placed.

Owns the order of loading and the translation from config words to torch's. Everything it returns is ready to run.
Refuses to decide placement or sizes: those are resolved before, except that a GPU's memory is measured here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from foveate.core.config import Config, DeviceFacts, usable_cores
from foveate.core.values import ModelCard
from foveate.core.work import Work
from foveate.models.even import EvenModel
from foveate.models.interface import NOTHING, LanguageModel, MemorySpec, VisionTower
from foveate.models.qwen3_5 import Qwen35
from foveate.models.qwen3_5_config import text_config
from foveate.models.qwen3_5_device import Qwen35OnDevice, stand_in, turn_matrices
from foveate.models.registry import describe, load_text, load_vision, work
from foveate.models.weights import Place, Progress, read_json
from foveate.ops.attention import leave_out_cudnn
from foveate.ops.kernels import triton_kernels
from foveate.ops.threads import compute_with
from foveate.run.ahead import Ahead
from foveate.run.cache import allocate, joined, measured_kv_tokens
from foveate.run.draft import Drafter
from foveate.run.drafters import find_drafter
from foveate.run.embeds import RowStore
from foveate.run.encoder import EncoderStream
from foveate.run.encoder_process import ProcessWorker
from foveate.run.encoder_worker import TowerSource
from foveate.run.faults import FaultyRunner, FaultyTower, faulty_runner, faulty_tower
from foveate.run.grammar import Grammars
from foveate.run.graphs import EvenSteps, Spare
from foveate.run.runner import Runner
from foveate.run.warm import rehearse, warm_up

__all__ = [
    "describe",
    "device_facts",
    "device_name",
    "measure",
    "open_drafter",
    "open_encoder",
    "open_grammars",
    "open_model",
    "open_runner",
    "open_tower",
    "use_device",
    "work_of",
]


def device_facts(kv_tokens: int | None = None) -> DeviceFacts:
    """What this machine offers now; `kv_tokens` once it has been measured."""
    return DeviceFacts(usable_cores(), torch.cuda.device_count(), kv_tokens, find_spec("triton") is not None)


def work_of(folder: Path, config: Config) -> Work | None:
    """What the model's steps cost at least under this config; None for a family that is not counted."""
    return work(folder, _dtype(config).itemsize)


def device_name(device: str) -> str:
    """What a device is called by its maker; the word itself for a CPU."""
    return device if device == "cpu" else torch.cuda.get_device_name(device)


def open_model(folder: Path, config: Config, progress: Progress | None = None) -> LanguageModel:
    """The language model's weights on its device."""
    with ThreadPoolExecutor(1, "foveate-warm") as beside:
        warm = beside.submit(_rehearse, folder, config)
        kernels = config.kernels == "triton"
        model = load_text(folder, config.device, _dtype(config), progress, _is_dummy(config), kernels)
        warm.result()
    if config.kernels == "triton" and isinstance(model, Qwen35):
        turn_matrices(model.trunk)
        model = Qwen35OnDevice(model.config, model.trunk, triton_kernels())
    if config.device != "cpu":
        torch.cuda.empty_cache()  # what loading used on the way counts as free when memory is measured
    return model


def _rehearse(folder: Path, config: Config) -> None:
    """Compile kernels, where there are any, while the weights are being read."""
    data = read_json(folder / "config.json")
    if config.kernels != "triton" or not str(data.get("model_type")).startswith("qwen3_5"):
        return
    use_device(config)
    place = (torch.device(config.device), _dtype(config))
    model, drafts = stand_in(text_config(data), place, triton_kernels()), config.settings.draft != "none"
    rehearse(model, config.device, config.slots, config.page_len, drafts)


def open_drafter(folder: Path, draft_folder: Path | None, model: LanguageModel, config: Config) -> Drafter | None:
    """The drafter that the settings ask for; `draft_folder` is where a named one lies. None: decode plainly.

    Raises CheckpointError when one that was asked for by name is missing or does not fit; with `auto` it is left out
    with a warning.
    """
    place = Place(torch.device(config.device), _dtype(config), None, _is_dummy(config))
    return find_drafter(config.settings, folder, draft_folder, model, place)


def open_tower(folder: Path, config: Config) -> VisionTower | FaultyTower | None:
    """The vision tower, where it lives in the memory that `measure` looks at; elsewhere the encoder loads its own."""
    shared = config.device != "cpu" and config.encoder_device == config.device and config.encoder_worker != "process"
    return _load_tower(folder, config) if shared else None


def measure(model: LanguageModel, drafter: Drafter | None, config: Config, sees: bool) -> int | None:
    """Tokens of key/value memory that fit beside what is loaded and, if the model `sees`, all image rows.

    None on a CPU.
    """
    rows_bytes = config.image_rows * model.hidden_size * _dtype(config).itemsize if sees else 0
    return measured_kv_tokens(_kept(model, drafter), config.slots, config.page_len, config.device, rows_bytes)


def open_grammars(folder: Path, card: ModelCard) -> Grammars:
    """The vocabulary as grammars need it."""
    return Grammars.load(folder, card.eos_ids, card.vocab_size)


def open_runner(
    model: LanguageModel, drafter: Drafter | None, grammars: Grammars, config: Config
) -> Runner | FaultyRunner:
    """A runner with its memory allocated, and where it has kernels of its own, warm."""
    even = isinstance(model, EvenModel)
    spare = Spare(config.pages, config.slots)  # one page and one slot more than are ever leased
    memory = allocate(_kept(model, drafter), config.pages + even, config.page_len, config.slots + even, config.device)
    runner = Runner(model, memory, RowStore(config.device, _dtype(config)), config.device, drafter, grammars)
    if isinstance(model, EvenModel):
        most_pages = -(-config.max_ctx // config.page_len)
        record = config.settings.graphs and config.device != "cpu"
        runner.even = EvenSteps(model, memory, spare, config.device, config.slots, most_pages, record)
        runner.ahead = Ahead(runner.even)
        warm_up(model, memory, spare, config.device, config.step_tokens)
        runner.even.prepare(NOTHING if drafter is None else drafter.capture)
    return faulty_runner(runner, config.settings.inject_fault)


def _kept(model: LanguageModel, drafter: Drafter | None) -> MemorySpec:
    return model.memory_spec() if drafter is None else joined(model.memory_spec(), drafter.memory_spec())


def open_encoder(
    folder: Path, config: Config, tower: VisionTower | FaultyTower | None, notify: Callable[[], None]
) -> EncoderStream:
    """The encoder stream, its tower, unless one is given, loaded where the config places it.

    Raises what loading raised.
    """
    source = TowerSource(
        partial(_load_tower, folder, config) if tower is None else lambda: tower,
        config.encoder_threads if config.encoder_apart else config.model_threads,
        config.encoder_device,
        config.settings.encode_timeout_s,
    )
    stream = EncoderStream(config.encoder_worker, source, config.decode_workers, notify)
    if isinstance(stream.worker, ProcessWorker):
        try:
            stream.worker.wait_ready()
        except BaseException:
            stream.close()
            raise
    return stream


def use_device(config: Config) -> None:
    """Set the calling thread's CPU threads, and make the language model's device the one it launches kernels on."""
    leave_out_cudnn()
    compute_with(config.model_threads)
    if config.device != "cpu":
        torch.cuda.set_device(config.device)


def _load_tower(folder: Path, config: Config) -> VisionTower | FaultyTower:
    """A named function, so that it can be sent to another process."""
    tower = load_vision(folder, config.encoder_device, _dtype(config), dummy=_is_dummy(config))
    return faulty_tower(tower, config.settings.inject_fault)


def _is_dummy(config: Config) -> bool:
    return config.settings.load_format == "dummy"


def _dtype(config: Config) -> torch.dtype:
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
