"""foveate: an inference server for vision-language models whose encoder streams images into prefill."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foveate.offline import Ask, Model, Reply, Wishes

__version__ = "0.1.0"

__all__ = ["Ask", "Model", "Reply", "Wishes", "__version__"]


def __getattr__(name: str) -> object:
    """The offline API is imported when it is first asked for: `foveate --help` needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module 'foveate' has no attribute {name!r}")
    return getattr(import_module("foveate.offline"), name)
