"""A real server, service and engine on a tiny model that says what a test wants: only the draw is replaced.

Its chat template is of the Qwen3.5 kind: it shows tools and tool results, and opens a thought unless told not to.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import openai

from foveate.core.plan import StepPlan, StepResult
from foveate.prompt.tokens import Tokens
from tests.cases.oracle import House, open_house
from tests.support.harness import tiny

TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{%- endfor %}
    {{- '<tool_call>\\n<function=name>\\n<parameter=key>\\nvalue\\n</parameter>\\n' }}
    {{- '</function>\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content %}
        {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
    {%- endif %}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {{- '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text }}
        {%- endfor %}
    {%- endif %}
    {%- for call in message.tool_calls or () %}
        {{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
        {%- for key, value in call.function.arguments.items() %}
            {{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
        {%- endfor %}
        {{- '</function>\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
    {%- if not (enable_thinking | default(false)) %}{{- '\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
LOOK = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "zoom": {"type": "integer"}, "kind": {"enum": ["pie", "bar"]}},
    "required": ["path"],
}
WRITTEN = '<tool_call>\n<function=look>\n<parameter=path>\na "b"\nc\n</parameter>\n<parameter=zoom>\n3\n</parameter>\n'
WRITTEN += "</function>\n</tool_call>"
ARGUMENTS = '{"path":"a \\"b\\"\\nc","zoom":3}'


class Script:
    """Stands before an executor: while it has `ids`, every draw of a request is the next of them, then the end."""

    def __init__(self, executor: Any, tokens: Tokens) -> None:
        self._executor, self._tokens = executor, tokens
        self.ids: Sequence[int] | None = None
        self.prompts: dict[int, tuple[int, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def say(self, text: str | None, *, bytewise: bool = False) -> None:
        """The text of all answers from here on; `bytewise` in tokens of one byte each. None: the model's own."""
        units = text.encode() if text is not None and bytewise else b""
        singles = {self._tokens.raw(token): token for token in range(512) if len(self._tokens.raw(token)) == 1}
        self.ids = [singles[bytes([unit])] for unit in units] if bytewise else self._tokens.encode(text or "")
        self.ids = None if text is None else self.ids

    def execute(self, plan: StepPlan) -> StepResult:
        result, ids = self._executor.execute(plan), self.ids
        if ids is None:
            return result
        ends = (self._tokens.id_of(text) for text in ("<|im_end|>", "<｜end▁of▁sentence｜>"))
        end = next(token for token in ends if token is not None)
        outcomes = [
            replace(outcome, tokens=(ids[piece.draw.index] if piece.draw.index < len(ids) else end,))
            if piece.draw is not None and outcome.error is None
            else outcome
            for piece, outcome in zip(plan.slices, result.slices, strict=True)
        ]
        return StepResult(result.number, tuple(outcomes))


class Stage:
    """The house and its script, with the clients that people use."""

    def __init__(self, house: House, script: Script) -> None:
        self.house, self.script, self.url, self.http = house, script, house.address, house.http
        self.tokens = house.service._preparer.tokens

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=60)

    def anthropic(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url, api_key="none", max_retries=0, timeout=60)

    @property
    def name(self) -> str:
        return self.house.service.name


def write_folder(folder: Path) -> Path:
    """A tiny checkpoint with the template above."""
    shutil.copytree(tiny("dense")[2], folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@contextmanager
def on_stage(folder: Path, write: Callable[[Path], Path] = write_folder) -> Iterator[Stage]:
    with open_house(write(folder)) as house:
        loop = house.engine.loop
        script = Script(loop._executor, house.service._preparer.tokens)
        loop._executor = script
        yield Stage(house, script)
        script.say(None)
        loop._executor = script._executor
