"""The arms of a measurement: where the encoder may be, or a server somewhere.

Owns which placements there are on a machine and how each is opened. The four placements: on the model's device in turn
(`same_device`) or beside it (`second_stream`), on another device after which prefill begins (`sequential`) or streamed
into prefill (`streamed`). On a machine with one CPU "another device" is half of its cores. Knows no figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from foveate.bench.asking import Offline, Server, Target
from foveate.core.config import Config, Settings
from foveate.core.errors import ConfigError
from foveate.core.work import PEAKS, Peak, Work, peak_of
from foveate.engine.build import costs, open_engine, read_model
from foveate.service.service import Service

ARMS = ("streamed", "sequential", "second_stream", "same_device")
Open = Callable[[], Awaitable[Target]]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: a model opened here, or with `url` a server. gpu: whose peaks the floor counts with."""

    model: str
    settings: Settings
    url: str = ""
    key: str = ""
    gpu: str = ""


def placements(settings: Settings, config: Config) -> dict[str, Settings]:
    """Settings of each arm that this machine can run; `config` is what the settings resolve to.

    A separate encoder gets the same share of the machine whether it streams or not.
    """
    apart = settings
    if config.device == "cpu" and not config.encoder_apart:
        apart = replace(settings, mmproj_device="cpu")
    arms = {"same_device": replace(settings, mmproj_device="same", encoder_worker="auto", encoder_threads=0)}
    if config.device != "cpu":
        arms["second_stream"] = replace(settings, mmproj_device=config.device, encoder_worker="thread")
    if config.device == "cpu" or config.encoder_device != config.device:
        arms["streamed"] = replace(apart, encoder_stream=True)
        arms["sequential"] = replace(apart, encoder_stream=False)
    return {arm: arms[arm] for arm in ARMS if arm in arms}


def arms_of(subject: Subject, wanted: Sequence[str] = ()) -> dict[str, Open]:
    """How to open each arm, those of `wanted` (all, when empty). Raises ConfigError for one that cannot be run here."""
    if subject.url:
        return {"server": lambda: _open_server(subject)}
    found = placements(subject.settings, read_model(subject.model, subject.settings)[2])
    for arm in wanted:
        if arm not in found:
            raise ConfigError(f"no arm {arm} on this machine; there are {', '.join(found)}")
    return {arm: opener(subject.model, chosen) for arm, chosen in found.items() if not wanted or arm in wanted}


def opener(model: str, settings: Settings) -> Open:
    """How to open a model here under these settings."""

    async def open_it() -> Target:
        return Offline(Service(await asyncio.to_thread(open_engine, model, settings)))

    return open_it


async def _open_server(subject: Subject) -> Target:
    server = Server(subject.url, subject.settings.name, subject.key)
    if not server.name:
        await server.find_model()
    return server


def floor_of(subject: Subject) -> tuple[Work, Peak] | None:
    """What the model costs and what the device can do; None where either is not known.

    Of a server the model is only known when it is also named here, and the device when `gpu` names it.
    """
    if subject.gpu and subject.gpu not in PEAKS:
        raise ConfigError(f"unknown GPU: {subject.gpu} ({', '.join(PEAKS)})")
    if not subject.model:
        return None
    work, device = costs(subject.model, subject.settings)
    peak = PEAKS[subject.gpu] if subject.gpu else None if subject.url else peak_of(device)
    return (work, peak) if work is not None and peak is not None else None


def devices_of(subject: Subject) -> list[str]:
    """Names of the devices of a model that is opened here."""
    return [] if subject.url else [costs(subject.model, subject.settings)[1]]


Arms = Mapping[str, Open]
