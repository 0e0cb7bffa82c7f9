"""The numbers at /metrics, in Prometheus' text format.

Owns names and help texts. What vLLM also measures has vLLM's name (`vllm:`), because dashboards for it exist and
should work unchanged, label `model_name` included; what only a server that streams images has is under `foveate:`.
Promises one registry per app and no counting of its own but refused requests: everything else is read from the
service's `Snapshot` when somebody asks. Refuses to know how the engine counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from foveate.core.observe import Gauges, Snapshot, Spread

LABEL = "model_name"
GAUGES = {
    "running": ("vllm:num_requests_running", "Requests that have a slot."),
    "waiting": ("vllm:num_requests_waiting", "Requests that wait for a slot."),
    "waiting_image_rows": ("foveate:image_rows_waiting", "Image rows of requests that wait for a slot."),
    "pages": ("foveate:kv_pages", "Pages of key/value memory."),
    "pages_used": ("foveate:kv_pages_used", "Pages of key/value memory in use."),
    "slots": ("foveate:state_slots", "Slots for running requests."),
    "slots_used": ("foveate:state_slots_used", "Slots in use."),
    "image_rows": ("foveate:image_rows_capacity", "Image rows that can be kept at once."),
    "image_rows_used": ("foveate:image_rows_held", "Image rows kept for requests that still need them."),
    "image_rows_kept": ("foveate:image_rows_kept", "Image rows kept for requests to come; they give way to any other."),
    "images_encoding": ("foveate:encoder_queue_images", "Images handed to the encoder whose rows have not landed."),
}
SINCE_START = {
    "image_lookups": ("vllm:mm_cache_queries", "Images of requests, as they came."),
    "image_hits": ("vllm:mm_cache_hits", "Of these, images that are or will be encoded already: not for this request."),
}
TOTALS = {
    "prompt_tokens": ("vllm:prompt_tokens", "Prompt tokens of ended answers, image tokens included."),
    "image_tokens": ("foveate:image_rows", "Image tokens (rows) of ended answers."),
    "output_tokens": ("vllm:generation_tokens", "Generated tokens of ended answers."),
    "images": ("foveate:images", "Images of ended answers."),
    "preemptions": ("vllm:num_preemptions", "Times a running request had to give up its memory."),
    "steps": ("foveate:steps", "Steps of the language model."),
    "waited_s": ("foveate:encode_waited_seconds", "Seconds that prefill stood still for want of image rows."),
    "hidden_s": ("foveate:encode_hidden_seconds", "Seconds of encoding that prefill did not wait for."),
    "decode_steps": ("foveate:decode_steps", "Steps that gave an answer tokens after its first, once per answer."),
    "draft_steps": ("vllm:spec_decode_num_drafts", "Of these, steps that verified guessed tokens."),
    "drafted": ("vllm:spec_decode_num_draft_tokens", "Guessed tokens that were verified."),
    "accepted": ("vllm:spec_decode_num_accepted_tokens", "Guessed tokens that were right."),
}
SPREAD_NAMES = {
    "queue_s": ("vllm:request_queue_time_seconds", "Seconds from arrival to a slot."),
    "first_token_s": ("vllm:time_to_first_token_seconds", "Seconds from arrival to the first token."),
    "total_s": ("vllm:e2e_request_latency_seconds", "Seconds from arrival to the last token."),
    "prefill_s": ("vllm:request_prefill_time_seconds", "Seconds of prefill."),
    "inference_s": ("vllm:request_inference_time_seconds", "Seconds from a slot to the last token."),
    "generation_s": ("vllm:request_decode_time_seconds", "Seconds from the first token to the last."),
    "token_gap_s": ("vllm:inter_token_latency_seconds", "Seconds between a step's tokens of an answer and the last."),
    "per_token_s": ("vllm:request_time_per_output_token_seconds", "Mean seconds per token after the first."),
    "image_decode_s": ("foveate:image_decode_seconds", "Seconds to decode and resize an image."),
    "image_queue_s": ("foveate:image_queue_seconds", "Seconds from an image's decode to the start of its encode."),
    "image_encode_s": ("foveate:image_encode_seconds", "Seconds to encode an image."),
    "prompt_tokens": ("vllm:request_prompt_tokens", "Prompt tokens of an answer, image tokens included."),
    "output_tokens": ("vllm:request_generation_tokens", "Generated tokens of an answer."),
    "images": ("foveate:images_per_request", "Images of an answer's prompt."),
    "step_s": ("foveate:step_seconds", "Seconds of a step."),
    "step_tokens": ("vllm:iteration_tokens_total", "Tokens of a step."),
}


class Metrics:
    """The metrics of one app."""

    def __init__(self, model: str, read: Callable[[], Snapshot]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Reader(model, read))
        self._refused = Counter(
            "foveate:rejected",
            "Requests answered with an error, by its code.",
            (LABEL, "reason"),
            registry=self._registry,
        )
        self._turned_away = Counter(
            "vllm:admission_rejections",
            "Requests answered with 503, by what there was too little of.",
            (LABEL, "reason"),
            registry=self._registry,
        )
        self._model = model

    def refused(self, code: str, lack: str = "") -> None:
        """Count a request that was answered with an error; `lack` is what a busy server had too little of."""
        self._refused.labels(self._model, code).inc()
        if lack:
            self._turned_away.labels(self._model, lack).inc()

    def render(self) -> tuple[bytes, str]:
        """The exposition and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _Reader(Collector):
    """Turns a snapshot into metric families at the moment of a scrape."""

    def __init__(self, model: str, read: Callable[[], Snapshot]) -> None:
        self._model = model
        self._read = read

    def collect(self) -> Iterator[Metric]:
        snapshot = self._read()
        for attribute, (name, text) in GAUGES.items():
            yield self._gauge(name, text, getattr(snapshot.gauges, attribute))
        yield self._gauge("vllm:kv_cache_usage_perc", "Key/value memory in use, 0 to 1.", usage(snapshot.gauges))
        for table, counts in ((SINCE_START, snapshot.gauges), (TOTALS, snapshot.totals)):
            for attribute, (name, text) in table.items():
                family = CounterMetricFamily(name, text, labels=(LABEL,))
                family.add_metric((self._model,), getattr(counts, attribute))
                yield family
        # Whoever waits for an image has a slot, so that nobody waits for anything but capacity.
        reasons = {"capacity": snapshot.gauges.waiting, "deferred": 0}
        yield self._by_reason("vllm:num_requests_waiting_by_reason", reasons)
        yield self._by_word("vllm:request_success", "Answers that ended.", "finished_reason", snapshot.finished)
        yield self._by_word("foveate:request_failures", "Answers that failed.", "reason", snapshot.failed)
        by_depth = {str(depth): count for depth, count in enumerate(snapshot.accepted_at)}
        yield self._by_word(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Guesses that were right, by depth.", "position", by_depth
        )
        for key, spread in snapshot.spreads.items():
            yield self._histogram(*SPREAD_NAMES[key], spread)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=(LABEL,))
        family.add_metric((self._model,), value)
        return family

    def _by_reason(self, name: str, counts: Mapping[str, int]) -> Metric:
        family = GaugeMetricFamily(name, "Requests that wait for a slot, by why.", labels=(LABEL, "reason"))
        for reason, count in counts.items():
            family.add_metric((self._model, reason), count)
        return family

    def _by_word(self, name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
        family = CounterMetricFamily(name, text, labels=(LABEL, label))
        for word, count in counts.items():
            family.add_metric((self._model, word), count)
        return family

    def _histogram(self, name: str, text: str, spread: Spread) -> Metric:
        family = HistogramMetricFamily(name, text, labels=(LABEL,))
        edges = [*map(str, spread.bounds), "+Inf"]
        family.add_metric((self._model,), list(zip(edges, accumulate(spread.counts), strict=True)), spread.total)
        return family


def usage(gauges: Gauges) -> float:
    """Share of key/value memory in use."""
    return gauges.pages_used / gauges.pages if gauges.pages else 0.0
