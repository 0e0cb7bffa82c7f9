"""Counting, and the numbers that Prometheus reads."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from foveate.core.errors import Busy
from foveate.core.observe import SPREADS, Counters, Gauges, Outcome, Totals
from foveate.server.metrics import GAUGES, SINCE_START, SPREAD_NAMES, TOTALS, Metrics
from tests.server.fake_service import TIMINGS
from tests.server.live import Live

OUTCOME = Outcome("stop", 200, 160, 5, 0.75, TIMINGS)


def scraped(text: str) -> dict[tuple[str, str], float]:
    """Samples by name and the label that is not the model's."""
    out = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.pop("model_name") == "demo"
            out[sample.name, ",".join(sample.labels.values())] = sample.value
    return out


def test_counts_add_up() -> None:
    counters = Counters()
    counters.finished(OUTCOME)
    counters.finished(Outcome("abort", 10, 0, 0, 0.1))
    counters.failed("image_encode_failed")
    counters.stepped(0.02, 64)
    seen = counters.snapshot(Gauges(running=3))
    assert seen.gauges.running == 3
    assert seen.totals == Totals(210, 160, 5, 2, 1, 1, 0.1, 0.3)
    assert seen.finished == {"stop": 1, "length": 0, "abort": 1} and seen.failed == {"image_encode_failed": 1}
    assert seen.spreads.keys() == SPREADS.keys()
    counts = {name: spread.count for name, spread in seen.spreads.items()}
    assert counts["first_token_s"] == 1, "an answer without a token has no time to its first"
    assert (counts["image_decode_s"], counts["image_encode_s"]) == (1, 2), "an image that was not decoded has no time"
    assert seen.spreads["per_token_s"].total == pytest.approx(0.25 / 4)


def test_bucket_bounds_are_inclusive() -> None:
    counters = Counters()
    for tokens in (1, 8, 9, 10**6):
        counters.stepped(0.001, tokens)
    spread = counters.snapshot(Gauges()).spreads["step_tokens"]
    assert spread.counts[:3] == (1, 1, 1) and spread.counts[-1] == 1 and spread.total == 10**6 + 18


def test_a_snapshot_stays_as_it_was() -> None:
    counters = Counters()
    before = counters.snapshot(Gauges())
    counters.finished(OUTCOME)
    assert before.finished["stop"] == 0 and before.spreads["total_s"].count == 0


def test_threads_lose_no_count() -> None:
    counters = Counters()

    def work() -> None:
        for _ in range(500):
            counters.finished(OUTCOME)
            counters.stepped(0.001, 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = counters.snapshot(Gauges())
    assert seen.totals.steps == seen.finished["stop"] == seen.spreads["total_s"].count == 2000
    assert seen.totals.prompt_tokens == 2000 * 200


def test_every_number_has_a_name() -> None:
    assert GAUGES.keys() | SINCE_START.keys() == set(Gauges.__dataclass_fields__)
    assert TOTALS.keys() == set(Totals.__dataclass_fields__)
    assert SPREAD_NAMES.keys() == SPREADS.keys()
    names = [name for table in (GAUGES, SINCE_START, TOTALS, SPREAD_NAMES) for name, _ in table.values()]
    assert len(names) == len(set(names))
    assert all(name.startswith(("vllm:", "foveate:")) for name in names)


def test_metrics_show_the_snapshot(live: Live) -> None:
    live.service.gauges = Gauges(running=2, waiting=1, pages=8, pages_used=2, image_rows_used=320, images_encoding=3)
    live.service.counters.finished(OUTCOME)
    live.service.counters.failed("engine_step_failed")
    response = live.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    seen = scraped(response.text)
    expected = {
        ("vllm:num_requests_running", ""): 2,
        ("vllm:num_requests_waiting", ""): 1,
        ("vllm:kv_cache_usage_perc", ""): 0.25,
        ("vllm:prompt_tokens_total", ""): 200,
        ("vllm:generation_tokens_total", ""): 5,
        ("vllm:num_preemptions_total", ""): 1,
        ("vllm:request_success_total", "stop"): 1,
        ("vllm:request_success_total", "length"): 0,
        ("foveate:request_failures_total", "engine_step_failed"): 1,
        ("foveate:images_total", ""): 2,
        ("foveate:image_rows_total", ""): 160,
        ("foveate:image_rows_held", ""): 320,
        ("foveate:encoder_queue_images", ""): 3,
        ("foveate:encode_hidden_seconds_total", ""): 0.3,
        ("foveate:encode_waited_seconds_total", ""): 0.1,
        ("vllm:time_to_first_token_seconds_count", ""): 1,
        ("vllm:time_to_first_token_seconds_sum", ""): 0.5,
        ("vllm:time_to_first_token_seconds_bucket", "0.25"): 0,
        ("vllm:time_to_first_token_seconds_bucket", "0.5"): 1,
        ("vllm:time_to_first_token_seconds_bucket", "+Inf"): 1,
        ("vllm:e2e_request_latency_seconds_sum", ""): 0.75,
        ("vllm:num_requests_waiting_by_reason", "capacity"): 1,
        ("vllm:num_requests_waiting_by_reason", "deferred"): 0,
        ("vllm:request_prompt_tokens_sum", ""): 200,
        ("vllm:request_generation_tokens_sum", ""): 5,
        ("foveate:images_per_request_bucket", "1.0"): 0,
        ("foveate:images_per_request_bucket", "2.0"): 1,
    }
    assert {key: seen[key] for key in expected} == pytest.approx(expected)


def test_refusals_are_counted_by_reason(live: Live) -> None:
    def refused(reason: str) -> float:
        return scraped(live.http.get("/metrics").text).get(("foveate:rejected_total", reason), 0.0)

    before = refused("unsupported_parameter")
    live.chat(functions=[{"name": "f"}])
    live.chat(functions=[{"name": "f"}])
    live.chat()
    assert refused("unsupported_parameter") == before + 2


@pytest.mark.parametrize("lack", ["queue_requests", "host_memory", "time"])
def test_who_is_turned_away_is_counted_by_what_was_short(live: Live, lack: str) -> None:
    def turned_away() -> float:
        return scraped(live.http.get("/metrics").text).get(("vllm:admission_rejections_total", lack), 0.0)

    before = turned_away()
    for path in ("/v1/chat/completions", "/v1/messages"):
        live.play(admission=[Busy("full", lack=lack)])
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        assert live.http.post(path, json=body).status_code == 503
    live.chat(functions=[{"name": "f"}])
    assert turned_away() == before + 2


def test_apps_do_not_share_counts() -> None:
    first, second = (Metrics("demo", lambda: Counters().snapshot(Gauges())) for _ in range(2))
    first.refused("server_busy")
    assert b'reason="server_busy"' in first.render()[0] and b'reason="server_busy"' not in second.render()[0]


def test_guesses_are_counted_by_depth() -> None:
    counters = Counters()
    for accepted in ((3, 1), (2, 2, 1), ()):
        timings = replace(TIMINGS, decode_steps=9, draft_steps=4, drafted=12, accepted=accepted)
        counters.finished(replace(OUTCOME, timings=timings))
    seen = counters.snapshot(Gauges())
    assert seen.accepted_at == (5, 3, 1)
    assert (seen.totals.decode_steps, seen.totals.draft_steps, seen.totals.drafted) == (27, 12, 36)
    assert seen.totals.accepted == 9
    found = scraped(Metrics("demo", lambda: seen).render()[0].decode())
    assert found["vllm:spec_decode_num_accepted_tokens_total", ""] == 9
    assert [found["vllm:spec_decode_num_accepted_tokens_per_pos_total", depth] for depth in "012"] == [5, 3, 1]
