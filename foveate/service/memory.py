"""How much host memory is left for pictures, and the refusal when it is too little.

Owns the reading of the system's own numbers (the machine's, and the container's where there is one) and the estimate
of what decoding a request's pictures takes. Promises that where the system tells nothing, nothing is refused. Refuses
to know requests; a device's memory is another matter, decided at start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from foveate.core.errors import Busy

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
DECODE_BYTES = 11  # per pixel: as stored (4 at most), composited (4) and as RGB (3)

Probe = Callable[[], int | None]


class HostMemory:
    """The gate before decoding: `free_bytes` must stay free of what `probe` says is available (None: not known)."""

    def __init__(self, free_bytes: int, probe: Probe | None = None) -> None:
        self._free_bytes, self._probe = free_bytes, probe or available_bytes

    def check(self, areas: Sequence[int] = ()) -> None:
        """Raise Busy unless the largest of the pictures, given in pixels, can be decoded; they are decoded in turn."""
        available = self._probe()
        if available is not None and available - DECODE_BYTES * max(areas, default=0) < self._free_bytes:
            raise Busy("the server is short of memory for pictures; try again later", 5, "host_memory")


def available_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Bytes that can be allocated without swapping; None when the system does not tell."""
    known = [amount for amount in (_of_machine(meminfo), _of_container(cgroup)) if amount is not None]
    return min(known, default=None)


def _of_machine(meminfo: Path) -> int | None:
    """Linux's own estimate, MemAvailable."""
    kib = _field(meminfo, "MemAvailable:")
    return None if kib is None else kib * 1024


def _of_container(cgroup: Path) -> int | None:
    """What a control group (version 2) still allows; file pages that are not in use can be given back."""
    try:
        most = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    if not most.isdigit():
        return None  # "max": no limit
    return max(0, int(most) - used + (_field(cgroup / "memory.stat", "inactive_file") or 0))


def _field(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
        return next((int(words[1]) for words in map(str.split, lines) if words[:1] == [name]), None)
    except (OSError, ValueError, IndexError):
        return None
