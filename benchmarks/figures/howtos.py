"""`HOWTO_FIGURES`: the figures of howtos and of the reference, line by line."""

from statistics import median

from benchmarks.figures.figure import Figures, Value, at
from benchmarks.figures.rows import picked, ratio

BENCHMARK = "docs/howto/benchmark.md"
SCALING = "docs/howto/scale-by-load.md"
MEMORY = "docs/reference/gateway-memory.md"
MEMORY_COMMAND = "python -m benchmarks.gateway_memory"
SIZES, STREAMS = "2026-11-22-gateway-memory", "2026-11-26-gateway-idle-streams"
_POOLS, _UNIFIED = "found.pools", "found.unified"
_FILE = at("found", "tokenizer_file_mib")
_READ = at("found", "tokenizer_just_read_mib")
_MILLION = at("found", "index_mib_of_1000000")


def total(*parts: Value) -> Value:
    """Return the sum of some numbers."""
    return lambda documents: sum(part(documents) for part in parts)


def changed(key: str) -> Value:
    """Return a difference of the simulator in percent of what was live."""
    return at("difference", key, scale=100)


def day(trace: str) -> Value:
    """Return the cost of the product's autoscaler on a day, relative to the cheapest fixed fleet."""
    return picked(lambda costs: costs[0], "cost", rows=f"days.{trace}.rows", scaler="ours")


def percent(key: str) -> Value:
    """Return a share in percent."""
    return at(key, scale=100)


HOWTO_FIGURES = (
    Figures(SCALING, "In this simulated hour", "python -m benchmarks.fleet_history --holdout drift",
            ("2026-11-29-fleet-history-drift",),
            ("120", percent("attainment"), "2", "100", "95",
             at("fixed"), percent("fixed_attainment"), at("cost"))),
    Figures(SCALING, "A crowd that nothing announces",
            "python -m benchmarks.fleet_history --holdout late-crowd --hours 2",
            ("2026-11-29-fleet-history-late-crowd",),
            (percent("attainment"), at("fixed"), percent("fixed_attainment"), at("cost"))),
    Figures("docs/howto/disaggregate.md", "Long prompts hardly", "python -m benchmarks.pool_gaps",
            ("2026-11-28-pool-gaps",),
            ("8,000", picked(median, "beside_p99_ms", rows=_POOLS), picked(median, "ratio", rows=_POOLS),
             picked(median, "beside_p99_ms", rows=_UNIFIED), picked(median, "ratio", rows=_UNIFIED),
             picked(min, "ratio", rows=_POOLS), picked(max, "ratio", rows=_POOLS))),
    Figures("docs/howto/disaggregate.md", "With drafts, which",
            "python -m benchmarks.pool_gaps --pairs pools --speculation off auto",
            ("2026-11-30-pool-gaps",),
            (*(picked(median, "beside_tokens_per_second", rows=f"{_POOLS}, drafts {each}")
               for each in ("auto", "off")),
             *(picked(median, key, rows=f"{_POOLS}, drafts {each}")
               for key in ("beside_p99_ms", "ratio") for each in ("auto", "off")),
             *(picked(choose, "ratio", rows=f"{_POOLS}, drafts auto") for choose in (min, max)),
             picked(median, "ratio_of_control", rows=f"{_POOLS}, drafts off"))),
    Figures("docs/howto/keep-a-conversation.md", "An engine that joins two",
            "python -m benchmarks.joining_engine", ("2026-11-28-joining-engine",),
            (picked(median, "share", warm=True), "100",
             *(picked(choose, "share", warm=False) for choose in (min, max)),
             *(picked(choose, "requests", warm=False) for choose in (min, max)), "800")),
    Figures(BENCHMARK, "- `fleet-pools` has", "python -m benchmarks.fleet.pools --trace FILE",
            ("2026-11-28-fleet-pools",),
            (picked(median, "cost", what="ours"), picked(max, "cost", what="ours"))),
    Figures(BENCHMARK, "- `fleet-days` has", "python -m benchmarks.fleet --trace FILE --compare",
            ("2026-11-26-fleet-days",),
            (day("azure_llm_2023_conv"), day("azure_llm_2023_code"), day("mooncake_fast25_synthetic"))),
    Figures(BENCHMARK, "On two idle cores", "python -m benchmarks.fleet_live", ("2026-11-26-fleet-live",),
            (at("minutes"), at("rate"), changed("ttft_p50"), changed("ttft_p95"), changed("token_hit_rate"))),
    Figures(MEMORY, "the process", MEMORY_COMMAND, (SIZES,),
            (at("found", "gateway_mib"), at("found", "gateway_with_redis_mib"),
             at("found", "gateway_with_picker_mib"))),
    Figures(MEMORY, "each tokenizer, while it is read", MEMORY_COMMAND, (SIZES,),
            (ratio(_READ, _FILE), _READ, _FILE)),
    Figures(MEMORY, "each tokenizer, afterwards", MEMORY_COMMAND, (SIZES,),
            (ratio(at("found", "tokenizer_mib"), _FILE), "32")),
    Figures(MEMORY, "the prefix index", MEMORY_COMMAND, (SIZES,),
            (at("found", "bytes_a_hash_of_4000000"), _MILLION, at("found", "index_mib_of_4000000"))),
    Figures(MEMORY, "requests |", "python -m benchmarks.gateway_idle", (STREAMS,),
            (at("found", "kib_per_stream"), at("found", "kib_per_stream"), "1,024")),
    Figures(MEMORY, "The total is", MEMORY_COMMAND, (SIZES, STREAMS),
            (_FILE, "1,024",
             total(at("found", "gateway_with_picker_mib"), _READ, _MILLION,
                   at("found", "kib_per_stream", source=1)))),
)  # fmt: skip
