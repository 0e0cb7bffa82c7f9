"""The door and the line behind it: what can never fit, what is too much for now, and whose turn it is to start.

Owns the limits that scheduling obeys, the refusals at submission and the waiting line. Promises that a request in the
line can run to its end once it stands alone, so nothing waits for ever; that a small request may pass a blocked large
one, but only `bypass` times; that a preempted request returns to the front. Refuses to know how room is found: whether
a request can start now is a question it asks its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from foveate.core.errors import Busy, ContextLengthExceeded
from foveate.core.values import Ending, Prompt
from foveate.sched.request import Request


@dataclass(frozen=True, slots=True)
class Limits:
    """What scheduling may use.

    slots: requests that run at once. pages of page_len tokens: memory of all. max_ctx: prompt plus answer of one.
    step_tokens: tokens of one step, of them at most mixed_tokens of prompts while others decode. image_rows: rows
    encoding or landed at once. stream: prefill up to the first late image; off: wait for all of a request's images.
    encode_ahead: images handed to the encoder at once. queue_*: what may wait. bypass: how often later requests may
    start before an earlier one that does not fit yet. keep_images: rows that no request needs stay for later ones until
    others need the room.
    """

    slots: int
    pages: int
    page_len: int
    max_ctx: int
    step_tokens: int
    mixed_tokens: int
    image_rows: int
    stream: bool
    queue_requests: int
    queue_image_rows: int
    queue_bytes: int
    bypass: int
    encode_ahead: int = 2
    keep_images: bool = False

    def __post_init__(self) -> None:
        counts = (self.slots, self.pages, self.page_len, self.max_ctx, self.step_tokens, self.mixed_tokens)
        assert min(*counts, self.encode_ahead) >= 1, "every count must be at least one"


def refuse_what_never_fits(prompt: Prompt, ending: Ending, limits: Limits) -> None:
    """Raise ContextLengthExceeded, with the numbers, for a request that no amount of waiting could serve."""
    assert prompt.tokens and ending.max_new >= 1, "an empty prompt or answer is refused before it comes here"
    prompt_len, image_len = len(prompt.tokens), prompt.image_rows
    wish = f"{prompt_len} prompt tokens, {image_len} of them of images, and {ending.max_new} output tokens"
    most_len, memory_len = prompt_len + ending.max_new, limits.pages * limits.page_len
    if most_len > limits.max_ctx:
        raise ContextLengthExceeded(f"{wish} make {most_len}, but the context holds {limits.max_ctx} tokens")
    if most_len > memory_len:
        raise ContextLengthExceeded(f"{wish} make {most_len}, but the memory holds {memory_len} tokens")
    for number, span in enumerate(prompt.spans, 1):
        if span.rows > limits.image_rows:
            raise ContextLengthExceeded(
                f"image {number} has {span.rows} rows, but at most {limits.image_rows} are kept ({wish})"
            )
        if span.atomic and span.rows > limits.step_tokens:
            raise ContextLengthExceeded(
                f"image {number} needs {span.rows} tokens in one step, but a step runs {limits.step_tokens} ({wish})"
            )
    together_rows = sum({span.key: span.rows for span in prompt.spans}.values())
    if not limits.stream and together_rows > limits.image_rows:
        raise ContextLengthExceeded(
            f"the images have {together_rows} rows together, but at most {limits.image_rows} are kept ({wish})"
        )


class WaitingLine:
    """Requests that have not started, or were preempted, in the order in which they shall start."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._line: list[Request] = []

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._line)

    @property
    def image_rows(self) -> int:
        return sum(request.prompt.image_rows for request in self._line)

    @property
    def held_bytes(self) -> int:
        return sum(request.held_bytes for request in self._line)

    def refuse_when_full(self, prompt: Prompt, held_bytes: int, free_slots: int) -> None:
        """Raise Busy when one more would be too much; whoever finds a free slot is not counted as waiting.

        An empty line takes any request, however large: else one beyond the limits alone would be busy for ever. Choices
        of one answer, which have one prompt, are such a request together, and hold its pictures once.
        """
        limits, others = self._limits, [request for request in self._line if request.prompt is not prompt]
        rows = sum(request.prompt.image_rows for request in others)
        held = sum(request.held_bytes for request in others)
        full = lack = None
        if len(self._line) >= limits.queue_requests + free_slots and (others or not self._line):
            full, lack = f"{len(self._line)} requests are waiting", "queue_requests"
        elif others and rows + prompt.image_rows > limits.queue_image_rows:
            full, lack = f"requests with {rows} image rows are waiting", "queue_image_rows"
        elif others and held + held_bytes > limits.queue_bytes:
            full, lack = f"requests with {held} bytes of pictures are waiting", "queue_bytes"
        if full is not None and lack is not None:
            # No more than a guess: a second for each round of slots that stands before the newcomer.
            raise Busy(f"the server is busy: {full}; try again later", 1 + len(self._line) // limits.slots, lack)

    def join(self, request: Request) -> None:
        """Stand at the end."""
        self._line.append(request)

    def rejoin(self, request: Request) -> None:
        """Stand at the front, after a preemption."""
        self._line.insert(0, request)

    def leave(self, request: Request) -> None:
        """Step out without having started."""
        self._line.remove(request)

    def call(self, fits: Callable[[Request], bool]) -> Request | None:
        """Take out the request that starts next: the first that fits, unless one before it has been passed enough."""
        for place, request in enumerate(self._line):
            if fits(request):
                for passed in self._line[:place]:
                    passed.passed += 1
                return self._line.pop(place)
            if request.passed >= self._limits.bypass:
                return None
        return None
