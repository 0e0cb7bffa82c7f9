"""One of the answers to a request, from its tokens to what can be shown of it.

Owns the way of a token: text without half characters and stop strings, then what of it is thought, said or called.
Promises that the parts do not depend on how tokens were grouped on their way, and that everything behind a stop string
or behind the last call that was allowed counts for nothing. Refuses to know the engine and wire formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from foveate.core.chat import CallDelta, ChoiceEnd, Delta, TextDelta, ThoughtDelta, TokenText
from foveate.core.values import Logprob, Timings
from foveate.prompt.elements import CallStart
from foveate.prompt.markup import Markup, MarkupStream, Said
from foveate.prompt.reasoning import Thought, Words
from foveate.prompt.text import TextStream
from foveate.prompt.tokens import Tokens


class Choice:
    """Choice number `number`. `reason` is None until it is known why it ended; `timings` come with the end."""

    def __init__(self, number: int, tokens: Tokens, text: TextStream, markup: Markup) -> None:
        self.number, self._vocabulary, self._text = number, tokens, text
        self._markup = MarkupStream(markup)
        self.tokens, self._thought = 0, 0
        self.reason: str | None = None
        self.timings: Timings | None = None
        self._begun = 0  # calls that have begun; arguments belong to the last
        self._logprobs: list[TokenText] = []

    def take(self, tokens: Sequence[int], logprobs: Sequence[Logprob]) -> list[Delta]:
        """Parts that new tokens make; sets `reason` when the answer ends with one of them, and takes none after it."""
        said: list[Said] = []
        used = 0
        for index, token in enumerate(tokens):
            self._thought += self._markup.thinking
            self._logprobs += [self._shown(logprob) for logprob in logprobs[index : index + 1]]
            piece, used = self._text.push((token,)), used + 1
            said += self._markup.push(piece.text)
            if piece.stop is not None or self._markup.done:
                said += self._markup.flush()
                self.reason = "stop"
                break
        self.tokens += used
        return self._deltas(said, used)

    def end(self, reason: str, timings: Timings) -> list[Delta | ChoiceEnd]:
        """The last parts, ChoiceEnd among them; `reason` is why the engine ended it, unless it had ended before."""
        parts: list[Delta | ChoiceEnd] = []
        if self.reason is None:
            piece = self._text.flush()
            self.reason = "stop" if piece.stop is not None else reason
            parts += self._deltas(self._markup.push(piece.text) + self._markup.flush(), 0)
        self.timings = timings
        told = "tool_calls" if self.reason == "stop" and self._markup.calls else self.reason
        return [*parts, ChoiceEnd(self.number, told, self.tokens, timings, self._thought, self._text.stop)]

    def _deltas(self, said: Sequence[Said], used: int) -> list[Delta]:
        """One part per stretch of a kind; the first has the count and the logprobs, which wait while text does."""
        deltas: list[Delta] = []
        for part in said:
            delta = self._delta(part)
            joined = _joined(deltas[-1], delta) if deltas else None
            deltas[len(deltas) - (joined is not None) :] = [joined or delta]
        if not deltas and not used and not (self.reason is not None and self._logprobs):
            return []
        first = deltas[0] if deltas else TextDelta(self.number, "")
        logprobs: tuple[TokenText, ...] = ()
        if deltas or self.reason is not None:
            logprobs, self._logprobs = tuple(self._logprobs), []
        return [replace(first, tokens=used, logprobs=logprobs), *deltas[1:]]

    def _delta(self, part: Said) -> Delta:
        if isinstance(part, Words):
            return TextDelta(self.number, part.text)
        if isinstance(part, Thought):
            return ThoughtDelta(self.number, part.text)
        if isinstance(part, CallStart):
            self._begun += 1
            return CallDelta(self.number, self._begun - 1, part.name)
        return CallDelta(self.number, self._begun - 1, None, part.text)

    def _shown(self, logprob: Logprob) -> TokenText:
        def show(token: int) -> tuple[str, bytes]:
            raw = self._vocabulary.raw(token)
            return raw.decode("utf-8", "replace"), raw

        top = tuple((*show(token), value) for token, value in logprob.top)
        return TokenText(*show(logprob.token), logprob.logprob, top)


def _joined(first: Delta, second: Delta) -> Delta | None:
    """Both in one, if they are of a kind."""
    if isinstance(first, CallDelta) and isinstance(second, CallDelta) and second.name is None:
        return replace(first, arguments=first.arguments + second.arguments)
    if isinstance(first, TextDelta) and isinstance(second, TextDelta):
        return replace(first, text=first.text + second.text)
    if isinstance(first, ThoughtDelta) and isinstance(second, ThoughtDelta):
        return replace(first, text=first.text + second.text)
    return None
