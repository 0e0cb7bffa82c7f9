"""The documents say what is: every field, flag, metric and error code, and every command in them runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from foveate.core.config import Settings
from foveate.core.errors import FoveateError
from foveate.server.app import REQUESTS
from foveate.server.wire import HARMLESS, REFUSED, marked_fields
from tests.server.live import Live
from tests.server.scripted import Stage
from tests.support.engines import png
from tests.support.harness import tiny

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ("api.md", "clients.md", "operations.md")
ROUTES = {
    "ChatCompletionRequest": "/v1/chat/completions",
    "CompletionRequest": "/v1/completions",
    "ResponsesRequest": "/v1/responses",
    "MessagesRequest": "/v1/messages",
    "CountTokensRequest": "/v1/messages/count_tokens",
    "TokenizeRequest": "/tokenize",
    "DetokenizeRequest": "/detokenize",
}


def table(route: str) -> dict[str, tuple[str, str]]:
    """Field -> (fate, note) of one route's table."""
    section = (DOCS / "api.md").read_text().split(f"### `POST {route}`\n")[1].split("\n### ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\w ]+) \| (.*?) ?\|$", section, re.M)
    assert len(rows) == len({name for name, _, _ in rows}), "a field is told twice"
    return {name: (fate, note) for name, fate, note in rows}


@pytest.mark.parametrize("model", REQUESTS, ids=lambda model: model.__name__)
def test_every_field_s_fate_is_told(model: Any) -> None:
    told = table(ROUTES[model.__name__])
    refused, harmless = marked_fields(model, REFUSED), marked_fields(model, HARMLESS)
    fates = {
        name: "refused" if name in refused else "no effect" if name in harmless else "supported"
        for name in model.model_fields
    }
    assert {name: fate for name, (fate, _) in told.items()} == fates
    for name, good in refused.items():
        assert re.findall("`([^`]+)`", told[name][1]) == [json.dumps(value) for value in good]
    assert all(note for fate, note in told.values() if fate == "supported")


def test_every_field_of_the_references_is_in_a_table() -> None:
    from anthropic.types.message_count_tokens_params import MessageCountTokensParams
    from anthropic.types.message_create_params import MessageCreateParamsStreaming
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as Chat
    from openai.types.completion_create_params import CompletionCreateParamsStreaming as Completions
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

    for kind, route in (
        (Chat, "/v1/chat/completions"),
        (Completions, "/v1/completions"),
        (ResponseCreateParamsStreaming, "/v1/responses"),
        (MessageCreateParamsStreaming, "/v1/messages"),
        (MessageCountTokensParams, "/v1/messages/count_tokens"),
    ):
        theirs = {name for base in (kind, *kind.__orig_bases__) for name in getattr(base, "__annotations__", {})}
        assert len(theirs) > 8 and theirs <= table(route).keys(), theirs - table(route).keys()


def test_every_flag_metric_and_error_code_exists(live: Live) -> None:
    flags = {f"--{f.name.replace('_', '-')}" for f in fields(Settings)} | {"--encoder-device", "--print-config"}
    flags |= {f"--no-{f.name.replace('_', '-')}" for f in fields(Settings) if isinstance(f.default, bool)}
    text = "".join((DOCS / page).read_text() for page in PAGES)
    own = re.sub(r"`vllm bench.*?`", "", text, flags=re.S)
    assert set(re.findall(r"--[a-z][a-z-]+", own)) <= flags
    exported = metric_names(live)
    absent = {name for theirs, here in namesakes().items() if here.startswith("none") for name in theirs}
    assert not {name for name in absent if {name, name + "_total"} & exported}, "the table says that it is not there"
    board = (DOCS / "grafana.json").read_text()
    for name in set(re.findall(r"(?:vllm|foveate):[a-z_0-9]+", text + board)) - absent:
        bare = name.removesuffix("_bucket")
        assert {bare, bare + "_total"} & exported, f"{name} is not exported"
    assert len(json.loads(board)["panels"]) >= 10

    def codes(kind: type[FoveateError]) -> set[str]:
        return {kind.code}.union(*map(codes, kind.__subclasses__()))

    told = set(re.findall(r"`([a-z_]+)`", (DOCS / "operations.md").read_text().split("## Errors")[1]))
    assert codes(FoveateError) - {"config_error", "checkpoint_error"} <= told


def metric_names(live: Live) -> set[str]:
    return set(re.findall(r"^# HELP (\S+)", live.http.get("/metrics").text, re.M))


def namesakes() -> dict[tuple[str, ...], str]:
    """Names of other servers -> what stands here for them, or `none` with the reason."""
    section = (DOCS / "operations.md").read_text().split("| theirs | here |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (`.+`) \| (.+) \|$", section, re.M)
    assert len(rows) > 10 and all(not here.removeprefix("none").startswith(" ") for _, here in rows)
    return {tuple(re.findall("`([^`]+)`", theirs)): here for theirs, here in rows}


# What people graph for servers like this one, by name.
GRAPHED = """
vllm: num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc prefix_cache_queries
prefix_cache_hits mm_cache_queries mm_cache_hits prompt_tokens prompt_tokens_cached generation_tokens request_success
num_preemptions admission_rejections time_to_first_token_seconds inter_token_latency_seconds
request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
request_prefill_time_seconds request_decode_time_seconds request_inference_time_seconds iteration_tokens_total
spec_decode_num_accepted_tokens_per_pos spec_decode_num_drafts spec_decode_num_draft_tokens
spec_decode_num_accepted_tokens request_prompt_tokens request_generation_tokens
sglang: encoder_queue_wait_seconds encoder_preprocess_seconds encoder_model_forward_seconds encoder_transfer_seconds
encoder_request_e2e_latency_seconds encoder_mm_items_per_request encoder_mm_items_per_batch
encoder_cache_hit_tokens_total encoder_cache_entries encoder_cache_size_mb encoder_cache_evictions_total
llamacpp: prompt_tokens_total prompt_tokens_cached_total tokens_predicted_total requests_processing requests_deferred
n_busy_slots_per_decode spec_decode_num_draft_tokens_total
"""


def test_every_name_that_is_graphed_is_there_or_told_about(live: Live) -> None:
    told, exported, prefix = {name for theirs in namesakes() for name in theirs}, metric_names(live), ""
    for word in GRAPHED.split():
        if word.endswith(":"):
            prefix = word
        else:
            assert {prefix + word, prefix + word + "_total"} & exported or prefix + word in told, prefix + word


def blocks(language: str) -> list[Any]:
    found = []
    for page in PAGES:
        texts = re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.S)
        found += [pytest.param(text, id=f"{page}-{number}") for number, text in enumerate(texts)]
    return found


def here(text: str, stage: Stage) -> str:
    """The block as it runs in this test: against the server of the test, on a tiny model."""
    text = text.replace("http://127.0.0.1:8000", stage.url).replace('Model("demo"', f'Model("{tiny("dense")[2]}"')
    return text.replace('"demo"', f'"{stage.name}"')


@pytest.mark.parametrize("text", blocks("python"))
def test_python_blocks_run(text: str, stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "chart.png").write_bytes(png(1))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", here(text, stage)], cwd=tmp_path, env=environment, capture_output=True, timeout=120
    )
    assert done.returncode == 0 and done.stdout.strip(), done.stderr.decode()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("text", blocks("sh"))
def test_shell_blocks_run(text: str, stage: Stage) -> None:
    command = here(text, stage).replace("curl -s ", "curl -sS --fail-with-body ")
    done = subprocess.run(["sh", "-ec", command], capture_output=True, timeout=120)
    assert done.returncode == 0 and done.stdout, done.stdout + done.stderr
