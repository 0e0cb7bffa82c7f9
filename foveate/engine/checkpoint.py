"""Turns what a person calls a model into a folder on disk: `demo`, `demo-ds4`, a path, or a hub id.

Owns that resolution and nothing about the folder's contents. A hub id is fetched through `huggingface_hub`, which keeps
its own cache and honours its own settings (endpoint, token, offline mode).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from foveate.core.errors import CheckpointError

PACKAGE = Path(__file__).resolve().parent.parent
DEMO = PACKAGE / "demo"
BUNDLED: Mapping[str, Path] = MappingProxyType({"demo": DEMO, "demo-ds4": PACKAGE / "demo-ds4"})
MAKING: Mapping[str, str] = MappingProxyType(
    {"demo-ds4": "python -m recipe --family deepseek_v4 --out DIR trains it (some 20 minutes on one GPU)"}
)
WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


def locate(model: str) -> Path:
    """The checkpoint folder of `model`; CheckpointError when there is none."""
    folder = BUNDLED.get(model) or Path(model).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if model in MAKING:
        raise CheckpointError(f"{model} is not here: {MAKING[model]}; then name DIR/model, or copy it to {folder}")
    if folder.exists() or model.startswith((".", "/", "~")) or model.count("/") != 1:
        kinds = f"a folder with config.json, a hub id OWNER/NAME, {' or '.join(BUNDLED)}"
        raise CheckpointError(f"no checkpoint at {model}: {kinds}")
    return _fetch(model)


def _fetch(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=WANTED))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{hub_id} could not be fetched from the hub: {reason}") from error
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{hub_id} holds no config.json")
    return folder
