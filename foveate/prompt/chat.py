"""A conversation to token ids, through the model's own chat template.

Owns the template (run in jinja2's immutable sandbox, with the functions that published templates expect), what it is
given, and the tokenising of what it renders. Promises that images keep their place and order, that an image the
template does not show is an error and never lost, and that no client text becomes a control token. Refuses to know
pictures, engines and wire formats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from foveate.core.errors import CheckpointError, InvalidRequest
from foveate.prompt.dsml import MARK as DSML
from foveate.prompt.reasoning import CLOSE, OPEN
from foveate.prompt.shield import MARK, Shield
from foveate.prompt.tokens import Tokens
from foveate.prompt.tools import FUNCTION

MAX_MESSAGES = 4096
MAX_DEPTH = 32  # of values inside a message or a template variable

_FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
_PROBE = "foveate probe"
# For families whose releases hold no template but a program that does its work.
BUILT_IN: Mapping[str, Path] = MappingProxyType({"deepseek_v4": Path(__file__).with_name("deepseek_v4.jinja")})
_END = "\ud801"  # no client can send it, and no template looks for it: see shield.MARK


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation: `images[k]` is the request's index of the picture that stands at `ids[places[k]]`.

    opened: it ends inside the assistant's thought.
    """

    ids: tuple[int, ...]
    places: tuple[int, ...] = ()
    images: tuple[int, ...] = ()
    opened: bool = False


class _Refusal(TemplateError):
    """The template itself refused the conversation, in its author's words."""


class _Generation(Extension):
    """Published templates may wrap the assistant's words in a tag that only training reads; here it is transparent."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """The chat template of one model.

    image_id: the placeholder token that it writes for a picture, if it has any. names: what it may call the special
    tokens, such as `bos_token`.
    """

    def __init__(
        self, source: str, tokens: Tokens, image_id: int | None = None, names: Mapping[str, str] | None = None
    ) -> None:
        self._tokens = tokens
        self._image_id = image_id
        self._names = dict(names or {})
        self._template, self.variables = _compile(source)
        self.thinks = OPEN in source or CLOSE in source
        self.dsml = DSML in source  # how it shows tool calls: in DeepSeek's markup,
        self.elements = FUNCTION in source  # or as elements, else as JSON
        guarded = {text for token, text in tokens.added.items() if token in tokens.special or token == image_id}
        markup = set(tokens.added.values()) - guarded
        self._client = Shield(guarded | markup)
        # What the model said before may hold its own markup (thoughts, tool calls), which templates look for.
        self._own = Shield(guarded, kept=markup)
        self._takes_parts = self._probe()

    @classmethod
    def load(cls, folder: Path, tokens: Tokens, image_id: int | None = None, model_type: str = "") -> ChatTemplate:
        """The template of a checkpoint folder, else the one known for its model type.

        Raises CheckpointError when there is neither, or it cannot be compiled.
        """
        config = _read_json(folder / "tokenizer_config.json")
        names = {key: text for key, value in config.items() if key.endswith("_token") and (text := _token_text(value))}
        file = folder / "chat_template.jinja"
        source = file.read_text("utf-8") if file.is_file() else _find_source(config, folder)
        if source is None and model_type in BUILT_IN:
            source = BUILT_IN[model_type].read_text("utf-8")
        if source is None:
            raise CheckpointError(f"{folder} has no chat template (chat_template.jinja or tokenizer_config.json)")
        return cls(source, tokens, image_id, names)

    def render(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any] | None = None, open_end: bool = False
    ) -> Rendered:
        """Ids of the conversation up to where the assistant speaks, and the places of its pictures.

        Messages as in `core.chat.ChatRequest`; `options` are extra template variables (they may also set
        `add_generation_prompt`). With `open_end` the ids end where the text of the last message does. Raises
        InvalidRequest when the template refuses the conversation, shows another number of pictures than it holds, or
        the conversation is too long or too deeply nested.
        """
        if len(messages) > MAX_MESSAGES:
            raise InvalidRequest(f"{len(messages)} messages; at most {MAX_MESSAGES} are allowed", "messages")
        images: list[int] = []
        shown = [self._message(message, images) for message in messages]
        extra = {key: _marked(value, self._client) for key, value in (options or {}).items()}
        text = self._run(shown, extra) if not open_end else self._run_open(shown, extra)
        pieces = self._client.cut(text)
        ids = [token for piece in pieces for token in self._tokens.encode(piece)]
        places = tuple(at for at, token in enumerate(ids) if token == self._image_id)
        if len(places) != len(images):
            text = f"the model's chat template shows {len(places)} of {len(images)} images"
            raise InvalidRequest(f"{text}; it may not take images in every role", "messages")
        opened = _ends_inside_thought(shown[-1]) if open_end else text.rstrip().endswith(OPEN)
        return Rendered(tuple(ids), places, tuple(images), opened)

    def _message(self, message: Mapping[str, Any], images: list[int]) -> dict[str, Any]:
        """A message as the template gets it; the indices of its pictures are appended to `images`."""
        shield = self._own if message.get("role") == "assistant" else self._client
        content = message.get("content")
        rest = _marked({key: value for key, value in message.items() if key != "content"}, shield)
        if not isinstance(content, (list, tuple)):
            return rest | ({"content": _marked(content, shield)} if "content" in message else {})
        if self._image_id is None and any(_is_image(part) for part in content):
            raise InvalidRequest("this model takes text only, no images", "messages")
        images.extend(part["image"] for part in content if _is_image(part))
        parts = [{"type": "image"} if _is_image(part) else _marked(part, shield) for part in content]
        if not self._takes_parts and all(part.get("type") == "text" for part in parts):
            return rest | {"content": "\n".join(part.get("text") or "" for part in parts)}
        return rest | {"content": parts}

    def _run(self, messages: list[dict[str, Any]], extra: Mapping[str, Any]) -> str:
        context = {"add_generation_prompt": True, **self._names, **extra, "messages": messages}
        try:
            return self._template.render(context)
        except _Refusal as refusal:
            reason = str(refusal.message or "").replace(MARK, "")[:200]
        except _FAULTS:
            reason = "a field that it needs is missing or of another type"
        raise InvalidRequest(f"the model's chat template refuses this conversation: {reason}", "messages")

    def _run_open(self, messages: list[dict[str, Any]], extra: Mapping[str, Any]) -> str:
        """What is rendered up to the end of the last message's text."""
        content = messages[-1].get("content") if messages else None
        if isinstance(content, str):
            last = {"content": content + _END}
        elif content and content[-1].get("type") == "text":
            last = {"content": [*content[:-1], content[-1] | {"text": content[-1]["text"] + _END}]}
        else:
            raise InvalidRequest("a message to continue ends with text", "messages")
        before, found, _ = self._run([*messages[:-1], messages[-1] | last], extra).rpartition(_END)
        if not found:
            raise InvalidRequest("the model's chat template does not show the message to continue", "messages")
        return before

    def _probe(self) -> bool:
        """Whether the template reads content given as a list of parts; some print such a list as it is."""
        parts = [{"type": "text", "text": _PROBE}]
        for content, answer in ((parts, True), (_PROBE, False)):
            try:
                text = self._run([{"role": "user", "content": content}], {})
            except InvalidRequest:
                continue
            if _PROBE in text and "'type'" not in text and '"type"' not in text:
                return answer
        return True


def _ends_inside_thought(message: Mapping[str, Any]) -> bool:
    """Whether a message to continue has opened a thought and not closed it."""
    content = message["content"] if isinstance(message["content"], str) else message["content"][-1]["text"]
    text = content.replace(MARK, "")
    return text.rfind(OPEN) > text.rfind(CLOSE)


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image"


def _marked(value: Any, shield: Shield, depth: int = 0) -> Any:
    """A JSON value with every string in it, keys too, marked."""
    if isinstance(value, str):
        return shield.mark(value)
    if depth >= MAX_DEPTH:
        raise InvalidRequest(f"values nested deeper than {MAX_DEPTH} levels", "messages")
    if isinstance(value, Mapping):
        return {shield.mark(str(key)): _marked(item, shield, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_marked(item, shield, depth + 1) for item in value]
    return value


def _compile(source: str) -> tuple[Template, frozenset[str]]:
    """Compile in the sandbox with the filters and functions that templates written for transformers rely on.

    Returns with it the names of the variables that the template reads.
    """
    extensions = ["jinja2.ext.loopcontrols", _Generation]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    try:
        return environment.from_string(source), frozenset(find_undeclared_variables(environment.parse(source)))
    except TemplateError as fault:
        raise CheckpointError(f"the chat template cannot be compiled: {fault.message}") from fault


def _refuse(message: object) -> None:
    raise _Refusal(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML, which a model would read as text."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _find_source(config: Mapping[str, Any], folder: Path) -> str | None:
    """The template inside tokenizer_config.json (one, or several with names), or in an older chat_template.json."""
    found = config.get("chat_template") or _read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(found, list):
        named = {entry["name"]: entry["template"] for entry in found}
        return named.get("default") or next(iter(named.values()), None)
    return found


def _token_text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as fault:
        raise CheckpointError(f"{path} is not valid JSON: {fault}") from fault
