"""`PUBLISHED`: the figures of README and documentation, line by line."""

from collections.abc import Sequence
from typing import Any

from benchmarks.figures.explained import EXPLAINED
from benchmarks.figures.figure import Figures, Value, at, rates, step
from benchmarks.figures.howtos import HOWTO_FIGURES

README = "README.md"
PERFORMANCE = "docs/explanation/performance.md"
KERNELS = "python -m benchmarks.engine_cpu --model DIR"
OVER_HTTP = "python -m benchmarks.cpu_defaults"
GATEWAY = "python -m benchmarks.http_cpu"
ROUTING = "python -m benchmarks.routing_live"
FLEETS = "python -m benchmarks.fleet --holdout NAME"
XEON = "2026-11-23-engine-cpu-amx"
ZEN5 = "2026-11-24-engine-cpu-zen5"
ZEN3 = "2026-11-24-engine-cpu-avx2"
ZEN4 = "2026-11-26-engine-cpu-zen4"
GRANITE = "2026-11-26-engine-cpu-granite"
EXPERTS = "2026-11-26-engine-cpu-granite-experts"
RELAY = "2026-11-26-http-cpu-gateway"
ROUTED = (
    "2026-11-26-routing-live", "2026-11-24-routing-live", "2026-11-23-routing-live",
    "2026-11-23-routing-live-again",
)  # fmt: skip
HOLDOUTS = "2026-11-25-fleet-holdouts"
IN_TIME = 0.95
"""Share of the requests that are in time in an hour that counts."""
LLAMA, INT8, LLAMA_INT8, LLAMA_INT4 = "llama.cpp", "int8", "llama.cpp int8", "llama.cpp int4"
SMALL, LARGE, STREAM = "whole answer, 8 connections", "whole answer, 64 connections", "stream of 64 tokens"


def requests(way: str, *at_once: int) -> tuple[Value, ...]:
    """Return the tokens per second of `benchmarks.cpu_defaults` at these numbers of requests at once."""
    return tuple(at("busy_processes", "0", way, str(number)) for number in at_once)


def micros(way: str, load: str, scale: float = 1.0) -> Value:
    """Return the processor time of a request through a gateway."""
    return at("micros_per_request", way, load, scale=scale)


def routed(workload: str, way: str) -> list[Value]:
    """Return the prompt tokens computed relative to one engine, of each source."""

    def value(source: int) -> Value:
        def read(documents: Sequence[Any]) -> float:
            [row] = [
                row for row in documents[source]["rows"] if (row["workload"], row["way"]) == (workload, way)
            ]
            return float(row["relative"])

        return read

    return [value(source) for source in range(len(ROUTED))]


def least(values: list[Value]) -> Value:
    """Return the smallest of some numbers."""
    return lambda documents: min(value(documents) for value in values)


def most(values: list[Value]) -> Value:
    """Return the largest of some numbers."""
    return lambda documents: max(value(documents) for value in values)


def span(workload: str) -> tuple[Value, Value]:
    """Return the smallest and the largest number of the default routing."""
    values = routed(workload, "resumable")
    return least(values), most(values)


def hours(scaler: str) -> tuple[Value, Value]:
    """Return in how many hours a scaler was in time, and the mean of its costs."""

    def rows(documents: Sequence[Any]) -> list[Any]:
        return [row for row in documents[0]["rows"] if row["scaler"] == scaler]

    def in_time(documents: Sequence[Any]) -> float:
        return float(sum(row["sloAttainment"] >= IN_TIME for row in rows(documents)))

    def cost(documents: Sequence[Any]) -> float:
        costs = [row["cost"] for row in rows(documents)]
        return float(sum(costs) / len(costs))

    return in_time, cost


def _gap(way: str, key: str, scale: float = 1.0) -> Value:
    return at("found", way, key, scale=scale)


_XEON_RATES = (*rates("C++", 1, 8, 32), *rates(LLAMA, 1, 8, 32))
_XEON_PROMPT = (step("prefill 512", "C++"), step("prefill 512", LLAMA))
_ZEN4_RATES = (*rates(INT8, 1, 8, 32), *rates(LLAMA_INT8, 1, 8, 32))
_GRANITE_RATES = (*rates("C++", 1, 8, 32), *rates("transformers", 1, 8, 32))
_ZEN5 = ("beside_llama_cpp",)
_ZEN5_TRANSFORMERS = ("beside_transformers",)
_BESIDE_TRANSFORMERS = tuple(
    value for way in ("C++", "transformers") for value in (*rates(way, 1, 8, 32), step("prefill 512", way))
)
_PIECES = "pieces of 2,048"
_OURS, _SGLANG = "this tree", "sglang-router"
_M1B = ("m1b",)
_LAST = {way: routed("agents", way)[0] for way in ("load", "attention")}

README_FIGURES = (
    Figures(README, "263M hybrid, Xeon", KERNELS, (XEON,), _XEON_RATES),
    Figures(README, "its 512-token prompt", KERNELS, (XEON,), _XEON_PROMPT),
    Figures(README, "int8, Zen 4", KERNELS, (ZEN4,), _ZEN4_RATES),
    Figures(README, "Granite 4 hybrid, 288M", KERNELS, (GRANITE,), _GRANITE_RATES),
    Figures(
        README, "gateway CPU, small request", GATEWAY, (RELAY,),
        (micros(_OURS, SMALL), micros(_OURS, LARGE), micros(_SGLANG, SMALL), micros(_SGLANG, LARGE)),
    ),
    Figures(
        README, "gateway CPU, stream", GATEWAY, (RELAY,),
        (micros(_OURS, STREAM, 1e-3), micros(_SGLANG, STREAM, 1e-3)),
    ),
    Figures(README, "agents' prompt tokens", ROUTING, ROUTED, (*span("agents"), *_LAST.values())),
    Figures(README, "simulated hours in time", FLEETS, (HOLDOUTS,), (*hours("ours"), *hours("wva"))),
)  # fmt: skip

PERFORMANCE_FIGURES = (
    Figures(PERFORMANCE, "263M hybrid on a Xeon", KERNELS, (XEON,),
            (*_XEON_RATES, *rates("transformers", 1, 8, 32))),
    Figures(PERFORMANCE, "a prompt of 512 tokens, bfloat16", KERNELS, (XEON,),
            (*_XEON_PROMPT, step("prefill 512", "transformers"))),
    Figures(PERFORMANCE, "the same model on an EPYC (Zen 5", KERNELS, (ZEN5,),
            (*rates("C++", 1, 8, 32, part=_ZEN5), *rates(LLAMA, 1, 8, 32, part=_ZEN5),
             *rates("transformers", 1, 8, 32, part=_ZEN5_TRANSFORMERS))),
    Figures(PERFORMANCE, "a prompt of 512 tokens there", KERNELS, (ZEN5,),
            (step("prefill 512", "C++", *_ZEN5), step("prefill 512", LLAMA, *_ZEN5),
             step("prefill 512", "transformers", *_ZEN5_TRANSFORMERS))),
    Figures(PERFORMANCE, "the same model with int8 matrices", KERNELS, (ZEN4,),
            (*_ZEN4_RATES, *rates(LLAMA, 1, 8, 32))),
    Figures(PERFORMANCE, "a prompt of 512 / 4,096 tokens with int8", KERNELS, (ZEN4,),
            tuple(step(f"prefill {size}", way) for way in (INT8, LLAMA_INT8, LLAMA) for size in (512, 4096))),
    Figures(PERFORMANCE, "the same model on an EPYC without AVX-512", KERNELS, (ZEN3,),
            (*rates("C++", 1, 8, 32, part=_ZEN5), *rates(LLAMA, 1, 8, 32, part=_ZEN5))),
    Figures(PERFORMANCE, "a 1B hybrid there", KERNELS, ("2026-11-25-engine-cpu-avx2",),
            tuple(value for way in ("C++", LLAMA)
                  for value in (*rates(way, 1, 8, part=_M1B), step("prefill 512", way, *_M1B)))),
    *(Figures(PERFORMANCE, begin, KERNELS, (f"2026-11-30-engine-cpu-int4{size}",),
              tuple(value for way in ("int4", LLAMA_INT4)
                    for value in (*rates(way, 1, 8), step("prefill 512", way))))
      for begin, size in (("the 263M hybrid with int4 matrices", ""),
                          ("the 1B hybrid with int4 matrices", "-1b"))),
    Figures(PERFORMANCE, "a 288M Granite 4 hybrid", KERNELS, (GRANITE,), _BESIDE_TRANSFORMERS),
    Figures(PERFORMANCE, "twelve layers of Granite 4 Tiny", KERNELS, (EXPERTS,), _BESIDE_TRANSFORMERS),
    *(Figures(PERFORMANCE, begin, OVER_HTTP, (source,),
              (*requests("default", 1, 8, 32), *requests("transformers generate", 1, 8, 32)))
      for begin, source in (("shipped model on an EPYC (Zen 5) over HTTP", "2026-11-26-cpu-defaults"),
                            ("the 263M hybrid there over HTTP", "2026-11-26-cpu-defaults-263m"))),
    Figures(PERFORMANCE, "gaps in a stream", "python -m benchmarks.stream_gaps", ("2026-11-26-stream-gaps",),
            (_gap("default", "gap_p99_ms", 1e-3), _gap("default", "prompt_beside_s"),
             _gap(_PIECES, "gap_p99_ms", 1e-3), _gap(_PIECES, "prompt_beside_s"), "2,048")),
    Figures(PERFORMANCE, "a gateway's CPU time for a small request", GATEWAY, (RELAY,),
            (micros(_OURS, SMALL), micros(_OURS, LARGE), micros(_SGLANG, SMALL), micros(_SGLANG, LARGE))),
    Figures(PERFORMANCE, "the same for a stream of 64 events", GATEWAY, (RELAY,),
            (micros(_OURS, STREAM, 1e-3), micros(_SGLANG, STREAM, 1e-3))),
    Figures(PERFORMANCE, "prompt tokens computed by 4 engines", ROUTING, ROUTED,
            (*span("agents"), *_LAST.values())),
    Figures(PERFORMANCE, "the same, documents / chats", ROUTING, ROUTED,
            (*span("documents"), *span("chat"),
             *(routed(kind, way)[0] for way in ("load", "attention") for kind in ("documents", "chat")))),
    Figures(PERFORMANCE, "eight simulated hours", FLEETS, (HOLDOUTS,),
            (*hours("ours"), *hours("wva"), *hours("kpa"), *hours("hpa-queue"))),
)  # fmt: skip

NO_FAILURES = tuple(
    Figures(page, begin, "make zero-drop", (source, *more), values)
    for page, begin, source, more, values in (
        (PERFORMANCE, "Engines, gateways, the operator", "2026-11-26-zero-drop-b", ("2026-11-26-zero-drop",),
         (at("failed"), at("requests"), at("failed", source=1), at("requests", source=1))),
        ("docs/explanation/changes-under-load.md", "The newest:", "2026-11-26-zero-drop-b",
         ("2026-11-26-zero-drop", "2026-11-25-zero-drop", "2026-11-24-zero-drop"),
         (at("failed"), at("requests"), at("first_piece_max"),
          *(at(key, source=source) for source in (1, 2, 3) for key in ("failed", "requests")))),
    )
)  # fmt: skip

PUBLISHED = README_FIGURES + PERFORMANCE_FIGURES + EXPLAINED + HOWTO_FIGURES + NO_FAILURES
