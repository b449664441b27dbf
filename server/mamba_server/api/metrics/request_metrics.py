"""Metrics of requests in the API process: latencies, tokens, finish reasons, HTTP answers.

`active_request` and the HTTP edge record them, `/metrics` reads them. Those of the engine are in
`engine_metrics`.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram

from mamba_telemetry.gathering_metrics import GatheringCounter, GatheringHistogram
from mamba_telemetry.registry import (
    FIRST_TOKEN_BUCKETS,
    LENGTH_BUCKETS,
    PREFIX,
    REQUEST_BUCKETS,
    TOKEN_BUCKETS,
)

Exemplar = dict[str, str] | None
"""Labels of the trace that a measurement refers to, for scrapers that ask for OpenMetrics."""


class RequestMetrics:
    """Counts and times the requests for one model, under our names and those of vLLM's dashboards."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        def histogram(
            name: str, alias: str, help_text: str, buckets: tuple[float, ...]
        ) -> tuple[Histogram, ...]:
            ours = GatheringHistogram(PREFIX + name, help_text, ["model"], buckets=buckets, registry=registry)
            same = f"Alias of {PREFIX}{name}."
            alias_series = GatheringHistogram(
                "vllm:" + alias, same, ["model_name"], buckets=buckets, registry=registry
            )
            return ours.labels(model), alias_series.labels(model)

        def counter(name: str, aliases: tuple[str, ...], help_text: str) -> tuple[Counter, ...]:
            ours = GatheringCounter(PREFIX + name, help_text, ["model"], registry=registry)
            same = f"Alias of {PREFIX}{name}_total."
            alias_series = [
                GatheringCounter("vllm:" + alias, same, ["model_name"], registry=registry)
                for alias in aliases
            ]
            return tuple(series.labels(model) for series in (ours, *alias_series))

        self._model = model
        self._ttft = histogram(
            "time_to_first_token_seconds",
            "time_to_first_token_seconds",
            "Time from the arrival of a request to the first token of a sequence.",
            FIRST_TOKEN_BUCKETS,
        )
        self._itl = histogram(
            "inter_token_latency_seconds",
            "inter_token_latency_seconds",
            "Time between two tokens of a sequence.",
            TOKEN_BUCKETS,
        )
        self._tpot = histogram(
            "time_per_output_token_seconds",
            "request_time_per_output_token_seconds",
            "Mean time per token of a sequence after its first one.",
            TOKEN_BUCKETS,
        )
        self._e2e = histogram(
            "request_duration_seconds",
            "e2e_request_latency_seconds",
            "Time from the arrival of a request to the end of a sequence.",
            REQUEST_BUCKETS,
        )
        self._queue = histogram(
            "request_queue_seconds",
            "request_queue_time_seconds",
            "Time from the arrival of a request to the first step with its prompt.",
            REQUEST_BUCKETS,
        )
        self._prefill = histogram(
            "request_prefill_seconds",
            "request_prefill_time_seconds",
            "Time from the first step with a prompt to the first token of a sequence.",
            REQUEST_BUCKETS,
        )
        self._decode = histogram(
            "request_decode_seconds",
            "request_decode_time_seconds",
            "Time from the first token of a sequence to its last.",
            REQUEST_BUCKETS,
        )
        self._longest = histogram(
            "request_max_generated_tokens",
            "request_max_num_generation_tokens",
            "Tokens of the longest sequence of a prompt.",
            LENGTH_BUCKETS,
        )
        self._prompt_len = histogram(
            "request_prompt_tokens", "request_prompt_tokens", "Prompt tokens of a request.", LENGTH_BUCKETS
        )
        self._output_len = histogram(
            "request_generated_tokens",
            "request_generation_tokens",
            "Tokens generated for a sequence.",
            LENGTH_BUCKETS,
        )
        self._prompt = counter(
            "prompt_tokens", ("prompt_tokens", "prefix_cache_queries"), "Prompt tokens of accepted requests."
        )
        self._generated = counter("generated_tokens", ("generation_tokens",), "Tokens generated.")
        self._cached = counter(
            "cached_tokens",
            ("prompt_tokens_cached", "prefix_cache_hits"),
            "Prompt tokens resumed from a checkpoint.",
        )
        self._finished = Counter(
            PREFIX + "requests_finished", "Sequences that ended.", ["model", "reason"], registry=registry
        )
        self._success = Counter(
            "vllm:request_success",
            f"Alias of {PREFIX}requests_finished.",
            ["model_name", "finished_reason"],
            registry=registry,
        )
        self._http = Counter(
            PREFIX + "http_requests", "Answers by route and status.", ["route", "status"], registry=registry
        )
        for reason in ("stop", "length", "abort", "error"):
            self._finished.labels(model, reason)
            self._success.labels(model, reason)
        # The same counts for `/v1/status`, which reads them every second without collecting all series.
        self.first_tokens = self.sequences_ended = self.sequences_failed = 0
        self.first_token_seconds = 0.0

    def submitted(self, prompt_tokens: int) -> None:
        """Record a request that was submitted to the engine."""
        for series in self._prompt:
            series.inc(prompt_tokens)
        for histogram in self._prompt_len:
            histogram.observe(prompt_tokens)

    def first_token(self, seconds: float, exemplar: Exemplar = None) -> None:
        """Record the time to the first token of a sequence."""
        self.first_tokens += 1
        self.first_token_seconds += seconds
        for histogram in self._ttft:
            histogram.observe(seconds, exemplar)

    def prompt_done(self, queued: float, prefill: float, exemplar: Exemplar = None) -> None:
        """Record how long a prompt waited, and how long it was computed, until its first token."""
        for histogram in self._queue:
            histogram.observe(queued, exemplar)
        for histogram in self._prefill:
            histogram.observe(prefill, exemplar)

    def request_done(self, longest: int) -> None:
        """Record the number of tokens of the longest sequence of a prompt, when the last one has ended."""
        for histogram in self._longest:
            histogram.observe(longest)

    def next_tokens(self, seconds_each: float, tokens: int) -> None:
        """Record further tokens of a running sequence; tokens that arrive together share the time."""
        for histogram in self._itl:
            for _ in range(tokens):
                histogram.observe(seconds_each)

    def generated(self, tokens: int) -> None:
        """Count generated tokens."""
        for series in self._generated:
            series.inc(tokens)

    def cached(self, tokens: int) -> None:
        """Count the prompt tokens of a request that were resumed from a checkpoint."""
        for series in self._cached:
            series.inc(tokens)

    def finished(
        self,
        reason: str,
        seconds: float,
        exemplar: Exemplar = None,
        *,
        per_token: float | None = None,
        tokens: int | None = None,
        decode: float | None = None,
    ) -> None:
        """Record the end of a sequence after `seconds`.

        Args:
            reason: finish reason.
            seconds: duration of the sequence.
            exemplar: trace that the histograms point to.
            per_token: mean seconds for each token after the first; None = not measured.
            tokens: number of tokens of the output; None = not counted.
            decode: seconds from the first to the last token; None = not measured.
        """
        self.sequences_ended += 1
        self.sequences_failed += reason == "error"
        self._finished.labels(self._model, reason).inc()
        self._success.labels(self._model, reason).inc()
        for histogram in self._e2e:
            histogram.observe(seconds, exemplar)
        if per_token is not None:
            for histogram in self._tpot:
                histogram.observe(per_token, exemplar)
        if decode is not None:
            for histogram in self._decode:
                histogram.observe(decode, exemplar)
        if tokens is not None:
            for histogram in self._output_len:
                histogram.observe(tokens)

    def answered(self, route: str, status: int) -> None:
        """Count an HTTP answer. `route` is one of ours or "other", never a path that a client chose."""
        self._http.labels(route, str(status)).inc()
