"""Wishes, model facts and device facts meet once: what comes of each combination, and what is refused with a reason."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from foveate.core.config import (
    MIB,
    Config,
    DeviceFacts,
    ModelFacts,
    Settings,
    api_keys,
    resolve,
    settings_from,
    words,
)
from foveate.core.errors import ConfigError
from foveate.core.values import MAX_IMAGES
from foveate.server.contract import limits_from
from foveate.service.prepare import fetch_policy

MODEL = ModelFacts("tiny", 4096, True, 64)


def made(cores: int = 8, cuda: int = 0, kv: int | None = None, model: ModelFacts = MODEL, **wishes: Any) -> Config:
    return resolve(Settings(**wishes), model, DeviceFacts(cores, cuda, kv))


@pytest.mark.parametrize(
    ("cores", "cuda", "wishes", "device", "encoder", "worker"),
    [
        (8, 0, {}, "cpu", "cpu", "inline"),
        (8, 0, {"mmproj_device": "cpu"}, "cpu", "cpu", "process"),
        (8, 0, {"encoder_threads": 3}, "cpu", "cpu", "process"),
        (1, 0, {}, "cpu", "cpu", "inline"),
        (8, 0, {"mmproj_device": "same"}, "cpu", "cpu", "inline"),
        (8, 0, {"encoder_worker": "thread"}, "cpu", "cpu", "thread"),
        (8, 1, {}, "cuda:0", "cuda:0", "inline"),
        (8, 2, {}, "cuda:0", "cuda:1", "thread"),
        (8, 2, {"device": "cuda:1"}, "cuda:1", "cuda:0", "thread"),
        (8, 2, {"device": "cuda"}, "cuda:0", "cuda:1", "thread"),
        (8, 1, {"device": "cpu"}, "cpu", "cuda:0", "thread"),
        (8, 1, {"mmproj_device": "cpu"}, "cuda:0", "cpu", "process"),
        (8, 1, {"mmproj_device": "cuda:0"}, "cuda:0", "cuda:0", "thread"),
        (8, 2, {"mmproj_device": "same"}, "cuda:0", "cuda:0", "inline"),
    ],
)
def test_placement(cores: int, cuda: int, wishes: dict[str, Any], device: str, encoder: str, worker: str) -> None:
    config = made(cores, cuda, **wishes)
    assert (config.device, config.encoder_device, config.encoder_worker) == (device, encoder, worker)
    assert config.encoder_apart == (worker != "inline")
    assert config.dtype == ("float32" if device == "cpu" else "bfloat16")


@pytest.mark.parametrize(
    ("cores", "wishes", "threads"),
    [
        (8, {}, (8, 8)),
        (8, {"mmproj_device": "cpu"}, (4, 4)),
        (2, {"mmproj_device": "cpu"}, (1, 1)),
        (3, {"mmproj_device": "cpu"}, (2, 1)),
        (8, {"encoder_threads": 2}, (6, 2)),
        (8, {"threads": 4, "mmproj_device": "cpu"}, (2, 2)),
        (8, {"mmproj_device": "same"}, (8, 8)),
        (1, {"mmproj_device": "cpu"}, (1, 1)),
    ],
)
def test_one_cpu_is_divided(cores: int, wishes: dict[str, Any], threads: tuple[int, int]) -> None:
    config = made(cores, **wishes)
    assert (config.model_threads, config.encoder_threads) == threads


@pytest.mark.parametrize(
    ("wishes", "kv", "max_ctx", "pages"),
    [
        ({}, None, 4096, 1024),
        ({"max_ctx": 1000}, None, 1000, 1024),
        ({"max_ctx": 9999}, None, 4096, 1024),
        ({"kv_tokens": 100}, None, 100, 4),
        ({"kv_tokens": 100, "page_len": 16}, None, 100, 7),
        ({}, 2048, 2048, 64),
        ({"kv_tokens": 64}, 2048, 64, 2),
    ],
)
def test_memory(wishes: dict[str, Any], kv: int | None, max_ctx: int, pages: int) -> None:
    config = made(kv=kv, **wishes)
    assert (config.max_ctx, config.pages) == (max_ctx, pages)
    assert config.image_rows == max(2 * max_ctx, 64)


def test_steps_depend_on_the_device() -> None:
    assert (made().step_tokens, made().mixed_tokens) == (2048, 256)
    assert (made(cuda=1).step_tokens, made(cuda=1).mixed_tokens) == (8192, 2048)
    assert made(step_tokens=100).mixed_tokens == 100
    assert made(image_rows=77).image_rows == 77
    assert made(kv_tokens=10, model=ModelFacts("m", 4096, True, 500)).image_rows == 500


def test_limits_reach_those_who_keep_them(tmp_path: Path) -> None:
    config = made(
        max_image_mib=1,
        max_images_mib=2,
        max_image_mpix=3,
        max_images_mpix=4,
        max_image_side=5,
        max_image_aspect=6,
        max_images=7,
        allow_http=False,
        allowed_media_hosts="a.example, .b.example,",
        allowed_media_networks="10.0.0.0/8,fd00::/8",
        allowed_media_ports="80, 8080",
        media_path=str(tmp_path),
        fetch_s=1.5,
        fetch_redirects=0,
        max_body_mib=8,
        max_json_depth=9,
        read_stall_s=1.0,
        body_s=2.0,
        send_stall_s=3.0,
    )
    limits, policy, server = config.pictures, fetch_policy(config), limits_from(config.settings)
    assert (limits.image_bytes, limits.total_bytes) == (MIB, 2 * MIB)
    assert (limits.image_pixels, limits.total_pixels) == (3 * MIB, 4 * MIB)
    assert (limits.max_side, limits.aspect_ratio, limits.images) == (5, 6, 7)
    assert (policy.http, policy.media_path, policy.deadline_s, policy.redirects) == (False, tmp_path, 1.5, 0)
    assert policy.limits is limits
    assert policy.rules.hosts == ("a.example", ".b.example") and policy.rules.ports == (80, 8080)
    assert policy.rules.networks == ("10.0.0.0/8", "fd00::/8")
    assert (server.body_bytes, server.json_depth) == (8 * MIB, 9)
    assert (server.read_stall_s, server.body_s, server.send_stall_s) == (1.0, 2.0, 3.0)


def test_nothing_is_open_that_was_not_opened() -> None:
    settings = Settings()
    assert settings.host == "127.0.0.1" and settings.media_path == "" and settings.inject_fault == ""
    policy = fetch_policy(made())
    assert policy.media_path is None and policy.rules.networks == () and policy.rules.ports == (80, 443)


@pytest.mark.parametrize(
    ("wishes", "words_of_it"),
    [
        ({"device": "tpu"}, "unknown device: tpu"),
        ({"device": "cuda:x"}, "unknown device"),
        ({"device": "cuda:3"}, "shows 0 CUDA"),
        ({"mmproj_device": "cuda:0"}, "shows 0 CUDA"),
        ({"encoder_worker": "fiber"}, "unknown encoder worker"),
        ({"dtype": "int3"}, "unknown dtype"),
        ({"log_level": "loud"}, "unknown log level"),
        ({"threads": 4, "encoder_threads": 4}, "leaves none"),
        ({"max_concurrency": 0}, "max-concurrency must be positive"),
        ({"kv_tokens": -1}, "kv-tokens must be positive"),
        ({"fetch_s": float("nan")}, "fetch-s must be positive"),
        ({"body_s": float("inf")}, "body-s must be positive"),
        ({"max_images": MAX_IMAGES + 1}, "max-images may be 16"),
        ({"max_json_depth": 1000}, "max-json-depth may be 128"),
        ({"port": 70_000}, "port may be 65535"),
        ({"max_image_mpix": 0}, "max-image-mpix must be positive"),
        ({"allowed_media_networks": "10.0.0.0/99"}, "10.0.0.0/99 is not an address range"),
        ({"allowed_media_networks": "10.1.2.3/8"}, "not an address range"),
        ({"allowed_media_ports": "80,http"}, "http is not a port"),
        ({"allowed_media_ports": "0"}, "0 is not a port"),
        ({"media_path": "/no/such/folder"}, "is not a folder"),
    ],
)
def test_contradictions_are_refused_with_their_reason(wishes: dict[str, Any], words_of_it: str) -> None:
    with pytest.raises(ConfigError, match=words_of_it):
        made(**wishes)


def test_settings_are_known_by_name_and_frozen() -> None:
    assert settings_from({"port": 9}).port == 9
    with pytest.raises(ConfigError, match="unknown setting: prot"):
        settings_from({"prot": 9})
    with pytest.raises(FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        made().device = "cpu"  # type: ignore[misc]


def test_every_setting_has_help_and_no_number_is_without_bounds() -> None:
    for f in fields(Settings):
        assert len(f.metadata["help"]) > 10 and f.metadata["help"].endswith("."), f.name
        if isinstance(f.default, int | float) and not isinstance(f.default, bool):
            with pytest.raises(ConfigError):
                made(**{f.name: type(f.default)(-1)})


def test_keys_come_from_the_flag_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# for the team\nsk-one\n\n  sk-two  \n")
    empty = tmp_path / "none"
    empty.write_text("# nothing\n")
    environment = {"FOVEATE_API_KEY": "sk-env, sk-env2"}
    assert api_keys(Settings(), {}) == ()
    assert api_keys(Settings(api_key="a,b ,"), environment) == ("a", "b")
    assert api_keys(Settings(), environment) == ("sk-env", "sk-env2")
    assert api_keys(Settings(api_key=f"@{file}"), {}) == ("sk-one", "sk-two")
    assert api_keys(Settings(), {"FOVEATE_API_KEY": f"@{file}"}) == ("sk-one", "sk-two")
    for bad in (tmp_path / "absent", tmp_path, empty):
        with pytest.raises(ConfigError, match="api-key names") as told:
            api_keys(Settings(api_key=f"@{bad}"), {})
        assert str(bad) not in told.value.message


def test_keys_are_shown_nowhere() -> None:
    config = made(api_key="sk-secret", media_path="/tmp")
    shown = json.dumps(config.as_dict()) + repr(config) + repr(config.settings) + str(config)
    assert "sk-secret" not in shown and config.as_dict()["settings"]["api_key"] == "(set)"
    assert made().as_dict()["settings"]["api_key"] == ""


def test_lists_of_words() -> None:
    assert words("") == () and words(" a ,,b,") == ("a", "b")


@pytest.mark.parametrize(
    ("wish", "device", "installed", "chosen"),
    [
        ("auto", "cpu", True, "torch"),
        ("auto", "cuda:0", True, "torch"),
        ("torch", "cuda:0", True, "torch"),
        ("triton", "cuda:0", True, "triton"),
    ],
)
def test_kernels_are_tritons_where_they_are_asked_for(wish: str, device: str, installed: bool, chosen: str) -> None:
    facts = DeviceFacts(4, 1, triton=installed)
    assert resolve(Settings(kernels=wish, device=device), MODEL, facts).kernels == chosen


@pytest.mark.parametrize(
    ("wish", "device", "installed", "reason"),
    [
        ("triton", "cpu", True, "CUDA"),
        ("triton", "cuda:0", False, "not installed"),
        ("c", "cpu", True, "unknown kernels"),
    ],
)
def test_kernels_that_cannot_run_are_refused(wish: str, device: str, installed: bool, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        resolve(Settings(kernels=wish, device=device), MODEL, DeviceFacts(4, 1, triton=installed))


@pytest.mark.parametrize(("cores", "gpus", "decoders"), [(2, 0, 1), (16, 0, 4), (16, 1, 16), (6, 2, 6), (64, 1, 16)])
def test_beside_a_gpu_every_core_decodes(cores: int, gpus: int, decoders: int) -> None:
    facts = DeviceFacts(cores, gpus, 10_000 if gpus else None)
    assert resolve(Settings(), ModelFacts("m", 4096, True, 64), facts).decode_workers == decoders
    assert resolve(Settings(decode_workers=3), ModelFacts("m", 4096, True, 64), facts).decode_workers == 3
    if gpus:
        on_cores = resolve(Settings(mmproj_device="cpu"), ModelFacts("m", 4096, True, 64), facts)
        assert on_cores.decode_workers == max(1, cores // 4), "the encoder needs them more"
