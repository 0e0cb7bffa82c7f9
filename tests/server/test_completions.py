"""The older completions, tokens and props: shapes, counts, and a stream that says what a whole answer does."""

from __future__ import annotations

from typing import Any

import pytest

from foveate.core.chat import ChoiceEnd, TextDelta
from foveate.core.errors import ContextLengthExceeded, InvalidRequest
from tests.server.fake_service import TIMINGS, Script, token, words
from tests.server.live import Live
from tests.server.scripted import Stage
from tests.support.engines import data_url, png

PATH = "/v1/completions"


def both(stage: Stage, **fields: Any) -> Any:
    """The completion, whole and streamed alike."""
    with stage.openai() as client:
        done = client.completions.create(model=stage.name, **fields)
        texts, reasons, usage = [""] * len(done.choices), [None] * len(done.choices), None
        for chunk in client.completions.create(
            model=stage.name, stream=True, stream_options={"include_usage": True}, **fields
        ):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.text for choice in done.choices] and usage == done.usage
    assert reasons == [choice.finish_reason for choice in done.choices]
    return done


def test_a_text_is_continued_as_it_is(stage: Stage) -> None:
    stage.script.say("é <think>x</think> \U0001f600", bytewise=True)
    done = both(stage, prompt="<|im_start|>user\nhi", max_tokens=64, echo=True)
    assert done.choices[0].text == "<|im_start|>user\nhié <think>x</think> \U0001f600"
    assert done.object == "text_completion" and done.usage.prompt_tokens == len(
        stage.tokens.encode("<|im_start|>user\nhi")
    )
    stage.script.say("0123456789abcdefghijk", bytewise=True)
    assert both(stage, prompt="x").choices[0].text == "0123456789abcdef", "sixteen tokens unless told otherwise"
    assert both(stage, prompt="x", stop="5").choices[0].text == "01234"


def test_several_prompts_and_ids(stage: Stage) -> None:
    stage.script.say(None)
    alone = [both(stage, prompt=text, max_tokens=6, temperature=0).choices[0].text for text in ("ab", "to be")]
    ids = [stage.tokens.encode(text) for text in ("ab", "to be")]
    assert both(stage, prompt=ids[1], max_tokens=6, temperature=0).choices[0].text == alone[1]
    for prompts in (["ab", "to be"], ids):
        done = both(stage, prompt=prompts, max_tokens=6, temperature=0, n=2, echo=True)
        assert [choice.text for choice in done.choices] == ["ab" + alone[0]] * 2 + ["to be" + alone[1]] * 2
        assert done.usage.prompt_tokens == sum(map(len, ids)) and done.usage.completion_tokens == 24


def test_logprobs_have_the_older_shape(live: Live) -> None:
    live.play(
        TextDelta(0, "", 1, (token("Hé"),)),
        TextDelta(0, "Hél", 1, (token("l", -1.5),)),
        ChoiceEnd(0, "stop", 2, TIMINGS),
    )
    shape = {
        "tokens": ["Hé", "l"],
        "token_logprobs": [-0.5, -1.5],
        "top_logprobs": [{"Hé": -0.5, "zz": -9999.0}, {"l": -1.5, "zz": -9999.0}],
        "text_offset": [0, 2],
    }
    body = {"prompt": "x", "logprobs": 2}
    assert live.http.post(PATH, json=body).json()["choices"][0]["logprobs"] == shape
    lines = live.http.post(PATH, json=body | {"stream": True}).text.split("\n\n")
    assert lines[0].count('"text_offset":[0]') == 1 and lines[1].count('"text_offset":[2]') == 1


def test_one_refusal_refuses_all_prompts(live: Live) -> None:
    live.service.script = Script(words("a"), admission=[ContextLengthExceeded("too long", "prompt")])
    response = live.http.post(PATH, json={"prompt": ["a", "b"]})
    assert response.status_code == 400 and response.json()["error"]["code"] == "context_length_exceeded"
    live.reset()
    assert live.http.post(PATH, json={"prompt": ["a", "b", "c"]}).json()["usage"]["completion_tokens"] == 6
    assert live.service.closed == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": [[]]}, "prompt"), ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": "x", "best_of": 2}, "best_of"), ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "echo": True, "logprobs": 1}, "echo"), ({"prompt": "x", "min_tokens": 20}, "min_tokens"),
        ({"prompt": ["x"] * 17}, "prompt"), ({"prompt": "x", "logprobs": True}, "logprobs"),
        ({"prompt": [2**40]}, "prompt[0]"), ({"prompt": "x", "messages": []}, "messages"),
    ],
)  # fmt: skip
def test_refusals_name_their_field(live: Live, fields: dict[str, Any], param: str) -> None:
    response = live.http.post(PATH, json=fields)
    assert response.status_code == 400 and response.json()["error"]["param"].startswith(param)
    assert live.service.requests == []


def test_prompts_that_cannot_be(stage: Stage) -> None:
    for prompt in ("", [10**6]):
        error = stage.http.post(PATH, json={"prompt": prompt}).json()["error"]
        assert (error["param"], error["type"]) == ("prompt", "invalid_request_error")


def test_tokens_there_and_back(stage: Stage) -> None:
    text = "héllo <|im_end|> \U0001f600"
    found = stage.http.post("/tokenize", json={"prompt": text}).json()
    assert found["count"] == len(found["tokens"]) and found["max_model_len"] == stage.house.service.max_ctx
    assert stage.http.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": text}
    picture = {"type": "image_url", "image_url": {"url": data_url(png(2))}}
    body = {"messages": [{"role": "user", "content": [picture, {"type": "text", "text": "x"}]}]}
    found = stage.http.post("/tokenize", json=body).json()
    (span,) = found["images"]
    done = stage.http.post("/v1/chat/completions", json=body | {"max_tokens": 1}).json()["usage"]
    assert (span["rows"], found["count"]) == (done["prompt_tokens_details"]["image_tokens"], done["prompt_tokens"])
    assert len(set(found["tokens"][span["start"] : span["start"] + span["rows"]])) == 1
    for wrong in ({}, {"prompt": "x", "messages": body["messages"]}, {"prompt": "x", "return_token_strs": True}):
        assert stage.http.post("/tokenize", json=wrong).status_code == 400
    for wrong in ({}, {"tokens": [10**7]}, {"tokens": "x"}):
        assert stage.http.post("/detokenize", json=wrong).status_code == 400


def test_props_tell_what_is_served(stage: Stage) -> None:
    props = stage.http.get("/props").json()
    assert props["model"]["name"] == stage.name and props["template"] == {
        "tools": True, "reasoning": True, "reasoning_effort": True,
    }  # fmt: skip
    assert props["limits"]["context"] == stage.house.service.max_ctx and props["images"]["per_request"] == 16
    assert {"/v1/messages", "/v1/responses", "/status", "/props"} <= set(props["api"]["endpoints"])
    assert props["server"]["name"] == "foveate" and "api_key" not in str(props)


def test_the_description_covers_every_route_and_leads_nowhere_else(live: Live) -> None:
    document = live.http.get("/openapi.json").json()
    endpoints = live.http.get("/props").json()["api"]["endpoints"]
    assert {path.replace(":path", "") for path in endpoints if path.startswith("/v1")} <= document["paths"].keys()
    schemas = document["components"]["schemas"]
    references = set(str(document).split("'#/components/schemas/")[1:])
    assert {reference.partition("'")[0] for reference in references} <= schemas.keys()
    for name in ("ChatCompletionRequest", "CompletionRequest", "ResponsesRequest", "MessagesRequest"):
        assert schemas[name]["properties"]


def test_the_service_s_own_refusals_pass_through(live: Live) -> None:
    live.play(admission=[InvalidRequest("no", "prompt")])
    assert live.http.post(PATH, json={"prompt": "x"}).json()["error"]["message"] == "no"
