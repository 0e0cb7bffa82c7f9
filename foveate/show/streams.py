"""Standard streams that never fail: a server must outlive the disk, pipe or terminal that its words go to.

Owns that one wrapper. Promises that what cannot be written is dropped, now and when the interpreter flushes at its
end, where a failure would change the exit code. Refuses to know what is written.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, TextIO


class Unfailing:
    """A text stream whose `write` and `flush` swallow what the system says against them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def make_standard_streams_unfailing() -> None:
    """Put the wrapper around the standard output and the standard error of this process."""
    sys.stdout, sys.stderr = Unfailing(sys.stdout), Unfailing(sys.stderr)  # type: ignore[assignment]
