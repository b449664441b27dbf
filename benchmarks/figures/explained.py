"""`EXPLAINED`: the figures of the explanations, line by line."""

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.figures.figure import Figures, Value, at
from benchmarks.figures.rows import cell, mean, picked, ratio, ratio_of_rounds

AUDITS = "docs/explanation/audits.md"
STRATEGY = "docs/explanation/choosing-a-strategy.md"
PLANNER = "docs/explanation/planner.md"
ROUTING = "docs/explanation/routing.md"
SPECULATION = "docs/explanation/speculation.md"
REPLAY = "docs/explanation/state-replay.md"
CACHE = "docs/explanation/state-cache.md"
TRANSFER = "docs/explanation/transfer.md"
SMALL_ENGINE, LARGE_ENGINE = "2026-11-21-cache-real-engine-tiny", "2026-11-21-cache-real-engine-350m"
HIT_RATE = "2026-11-24-cache-hit-rate"
MODELS = "2026-11-28-speculation-cpu"
DRAFTS = tuple(f"2026-11-30-speculation-turns{run}" for run in ("", "-run-2", "-run-3"))
HEADS = "2026-11-29-own-head-cpu"
ROUTED = "2026-11-24-routing-waiting"
REAL_ENGINE = "python -m benchmarks.cache.real_engine"
NEAR = 0.05
"""Loss below which a plan counts as near the best one."""


def distance(kind: str, precision: str) -> Value:
    """Return the largest distance of two right answers, over the families without experts."""

    def value(documents: Sequence[Any]) -> float:
        return max(
            float(row[kind]["largest"])
            for row in documents[0]["answers"]
            if "experts" not in row["family"] and row["precision"] == precision
        )

    return value


def losses(strategy: str) -> list[Value]:
    """Return in how many cases a strategy was near the best one, of how many, and its mean and worst loss."""

    def of(documents: Sequence[Any]) -> list[float]:
        found = []
        for row in documents[0]["rows"]:
            rates = {name: each["tokens_per_second"] for name, each in row["strategies"].items()}
            mine = rates[row["chosen"] if strategy == "plan" else strategy]
            found.append(1 - mine / max(rates.values()))
        return found

    return [
        lambda documents: float(sum(loss <= NEAR for loss in of(documents))),
        lambda documents: float(len(of(documents))),
        lambda documents: 100 * sum(of(documents)) / len(of(documents)),
        lambda documents: 100 * max(of(documents)),
    ]


def strategy_rows() -> tuple[Figures, ...]:
    """Return the figures of the strategies side by side."""
    figures = []
    for slabs in (7, 16, 34):
        for name in ("NoBuffer", "ExtraBufferLazy", "ExtraBuffer"):
            only: dict[str, Any] = {"rows": "strategies", "slabs": slabs, "strategy": name}
            running = cell("most_running", **only)
            figures.append(
                Figures(STRATEGY, f"{slabs} slabs, `{name}`", f"{REAL_ENGINE} --model DIR", (LARGE_ENGINE,),
                        (running, cell("hit_rate", scale=100, **only), cell("tokens_per_second", **only)))
            )  # fmt: skip
    return tuple(figures)


def chat(strategy: str) -> tuple[Value, Value]:
    """Return how much of a chat is computed, relative to each token once, and to whole pages once."""
    only: dict[str, Any] = {"rows": "conversation", "strategy": strategy, "answer_tokens": 60}
    return cell("over_ideal", **only), cell("over_page_aligned_ideal", **only)


def hits(slots: int, kv_tokens: int = 0) -> tuple[Value, ...]:
    """Return the share of tokens that a cache saves and of the bound, by both orders of eviction."""
    return tuple(
        cell(key, scale=scale, slots=slots, kv_tokens_beside=kv_tokens, eviction=eviction)
        for eviction in ("RecomputeCost", "LRU")
        for key, scale in (("hit_rate", 100.0), ("of_bound", 1.0))
    )


def computed(workload: str, way: str, *, ends: bool = True) -> tuple[Value, ...]:
    """Return the least and the most tokens computed, relative to one engine; else the first."""
    values = (picked(min, "relative", workload=workload, knowledge=way),
              picked(max, "relative", workload=workload, knowledge=way))  # fmt: skip
    return values if ends else values[:1]


def queues(workload: str, *absent: tuple[str, str, int]) -> tuple[Value, ...]:
    """Return five measures of even queues, each by load alone and by the default, of both seeds.

    `absent`: measure, way and seed of what was too little to be measured.
    """
    measures = (
        ("queues", "p99"), ("queues_of_windows", "p99"), ("work", "p99"), ("work_of_windows", "p99"),
        ("imbalance",),
    )  # fmt: skip
    return tuple(
        cell(*measure, workload=workload, knowledge=way, seed=seed)
        for measure in measures
        for way in ("load", "resumable")
        for seed in (0, 2)
        if (measure[0], way, seed) not in absent
    )


def steps(workload: str) -> tuple[Value, ...]:
    """Return the rate without drafts, and those of look-ups and of `auto` relative to it."""
    off = ("workloads", workload, "off")
    return (
        at(*off),
        *(ratio_of_rounds(("workloads", workload, way), off) for way in ("ngram", "auto")),
    )


def turns(workload: str) -> tuple[Value, ...]:
    """Return the rates of a second engine without drafts, of look-ups and of `auto`, to those without.

    Engines of the same setting count together, and so do several runs.
    """

    def seconds(way: str) -> Value:
        return lambda documents: fmean(
            sum(work for work, _ in rounds)
            for document in documents
            for name, rounds in document["workloads"][workload].items()
            if name.startswith(way)
        )

    return tuple(ratio(seconds("off"), seconds(way)) for way in ("off again", "ngram", "auto"))


def together() -> tuple[Value, ...]:
    """Return the rates of look-ups and of `auto` where they copy, and their lowest elsewhere."""
    rates = {workload: turns(workload)[1:] for _, workload in _ANSWERS}
    copying = rates.pop("copy with edits")

    def lowest(column: int) -> Value:
        return lambda documents: min(rate[column](documents) for rate in rates.values())

    return (*copying, lowest(0), lowest(1))


def drafted(count: int) -> tuple[Value, Value]:
    """Return the tokens of a step with this number of drafts, and the rate relative to that without."""

    def length(documents: Sequence[Any]) -> float:
        lengths = documents[0]["ways"][str(count)]["tokens_per_step"]
        return float(sum(lengths) / len(lengths))

    return length, ratio_of_rounds(("ways", str(count), "rates"), ("ways", "0", "rates"))


def churn(slabs: int, pages: int) -> tuple[Value, ...]:
    """Return what an arena of this size holds under churn, in percent of its bytes."""
    only: dict[str, Any] = {
        "rows": "runs", "scale": 100, "slabs": slabs, "pages_per_slab": pages, "strategy": "ExtraBuffer",
        "eviction": "RecomputeCost",
    }  # fmt: skip
    shares = tuple(mean("mean", part, **only) for part in ("running", "resumable", "useless", "stranded"))
    return (*shares, picked(max, "most_stranded", **only), mean("hit_rate", **only))


def bundles(key: str) -> tuple[Value, ...]:
    """Return a number of the bundle of each model."""

    def number(place: int) -> Value:
        return lambda documents: float([*documents[0]["found"].values()][place][key])

    return tuple(number(place) for place in range(4))


def plain_over_verified(documents: Sequence[Any]) -> float:
    """Return how much more processor time a verified read from disk takes than a plain one."""
    found = documents[0]["bundles"].values()
    return 1 / float(median(bundle["tiers"]["disk, 1 thread"]["processor_ratio"] for bundle in found))


def invariant(load: str, tokens: int) -> tuple[Value, ...]:
    """Return the tokens per second of both modes, and the ratio of times; `tokens`: those of a round."""

    def seconds(way: str) -> Value:
        return lambda documents: float(sum(documents[0]["loads"][load][way]))

    def rate(way: str) -> Value:
        return lambda documents: tokens * documents[0]["rounds"] / seconds(way)(documents)

    return rate("default"), rate("invariant"), ratio(seconds("invariant"), seconds("default"))


def percent(*path: str) -> Value:
    """Return the distance of a ratio from one, in percent."""
    return lambda documents: 100 * abs(at(*path)(documents) - 1)


_BURST = ("burst", "computed_tokens"), ("burst", "computed_without_caching")
_FULL, _HALF = "float32", "bfloat16"
_ANSWERS = (
    ("a page of which some words are edited", "copy with edits"),
    ("prose about something else", "prose about something else"),
    ("code", "code"),
    ("words of the prompt in another order", "words of the prompt in another order"),
    ("random tokens", "random tokens"),
    ("beginnings that repeat and go on differently", "copies that go on differently"),
)

EXPLAINED = (
    *(Figures("docs/explanation/batch-invariant.md", f"{load} |", "python -m benchmarks.batch_invariant",
              ("2026-11-29-batch-invariant",), invariant(load, tokens))
      for load, tokens in (("1 prompt", 512), ("16 prompts", 16 * 512), ("1 answer", 63),
                           ("16 answers", 16 * 63))),
    Figures(AUDITS, "The bounds allow for", "python -m benchmarks.audits", ("2026-11-28-audits",),
            (picked(sum, "answers", rows="answers"),
             *(distance(kind, precision) for precision in (_FULL, _HALF) for kind in ("scores", "states")))),
    Figures(AUDITS, "An audit takes idle time.", "python -m benchmarks.audit_cost",
            ("2026-11-28-audit-cost",),
            ("5,000", at("cost_at_default_share", scale=100), percent("busy_ratio_again"))),
    *strategy_rows(),
    Figures(STRATEGY, "NoBuffer", REAL_ENGINE, (SMALL_ENGINE,), chat("NoBuffer")),
    Figures(STRATEGY, "ExtraBuffer, ExtraBufferLazy", REAL_ENGINE, (SMALL_ENGINE,), chat("ExtraBuffer")),
    Figures(STRATEGY, "- **A shared prefix**", REAL_ENGINE, (SMALL_ENGINE, LARGE_ENGINE),
            ("10,000", "32", at("shared_prefix", "second_over_cold"),
             at("shared_prefix", "second_over_cold", source=1), "350",
             at("shared_prefix", "third_over_cold"), at("shared_prefix", "third_over_cold", source=1),
             at("shared_prefix", "cached_tokens", "second"))),
    Figures(STRATEGY, "- **A burst**", REAL_ENGINE, (SMALL_ENGINE, LARGE_ENGINE),
            ("1,000", *(at(*path) for path in _BURST), at("burst", "seconds_over_without_caching"),
             at("burst", "seconds_over_without_caching", source=1), "350")),
    Figures(STRATEGY, "- **Without any reuse**", REAL_ENGINE, (SMALL_ENGINE, LARGE_ENGINE),
            ("200", "312", "64", at("without_reuse", "throughput_on_over_off_cpu"),
             at("without_reuse", "rounds"), at("without_reuse", "throughput_on_over_off_cpu", source=1),
             "350")),
    Figures(STRATEGY, "A published trace", "python -m benchmarks.cache.hit_rate", (HIT_RATE,),
            (at("requests"), "2025", "512", at("bound", scale=100))),
    *(Figures(STRATEGY, f"{slots:,}", "python -m benchmarks.cache.hit_rate", (HIT_RATE,), hits(slots))
      for slots in (1600, 400, 50)),
    Figures(STRATEGY, "With KV counted", "python -m benchmarks.cache.hit_rate", (HIT_RATE,),
            ("1,600", "2.05", *hits(1600, 2_050_000))),
    *(Figures(PLANNER, begin, "python -m benchmarks.planner", ("2026-11-26-planner",), tuple(losses(name)))
      for begin, name in (("the plan", "plan"), ("always `ExtraBuffer`", "ExtraBuffer"),
                          ("always `ExtraBufferLazy`", "ExtraBufferLazy"),
                          ("always `NoBuffer`", "NoBuffer"))),
    Figures(ROUTING, "retrieval |", "python -m benchmarks.queue_balance", (ROUTED,),
            (*computed("retrieval", "load", ends=False), *computed("retrieval", "resumable", ends=False))),
    *(Figures(ROUTING, f"{name} | {begin}", "python -m benchmarks.queue_balance", (ROUTED,),
              (*computed(workload, "load"), *computed(workload, "resumable")))
      for name, workload, begin in (
          ("chat", "chat", "1"), ("two parts of Mooncake's trace", "mooncake_fast25_synthetic", "1"),
          ("documents", "documents", "2"), ("agents", "agents", "2"))),
    *(Figures(ROUTING, begin, "python -m benchmarks.queue_balance", (ROUTED,), queues(workload))
      for begin, workload in (("Mooncake, first", "mooncake_fast25_synthetic"), ("chat, 0", "chat"),
                              ("documents, 0", "documents"), ("agents, 0", "agents"))),
    Figures(ROUTING, "retrieval, 0", "python -m benchmarks.queue_balance", (ROUTED,),
            queues("retrieval", ("work_of_windows", "resumable", 0))),
    Figures(ROUTING, "Only documents and agents", "python -m benchmarks.queue_balance",
            ("2026-11-25-routing-short-memory",),
            (picked(min, "relative", workload="agents", knowledge="resumable"),
             picked(max, "relative", workload="agents", knowledge="resumable"))),
    Figures(ROUTING, "- Queues of routing by load alone", "python -m benchmarks.queue_balance", (ROUTED,),
            (cell("ttft_mean", workload="documents", knowledge="load", seed=0),
             cell("ttft_mean", workload="documents", knowledge="resumable", seed=0))),
    *(Figures(SPECULATION, begin, "python -m benchmarks.speculation --model DIR", (MODELS,), steps(workload))
      for begin, workload in _ANSWERS),
    *(Figures(SPECULATION, f"shipped model: {begin}", "python -m benchmarks.speculation", DRAFTS,
              turns(workload)) for begin, workload in _ANSWERS),
    *(Figures(SPECULATION, f"263 million: {begin}", "python -m benchmarks.speculation --model DIR",
              ("2026-11-29-speculation-263m",), turns(workload)) for begin, workload in _ANSWERS),
    *(Figures(SPECULATION, f"{begin} |", "python -m benchmarks.speculation --rows N",
              (f"2026-11-30-speculation-{name}-rows",), together())
      for begin, name in (("shipped, 8", "8"), ("shipped, 32", "32"), ("263 million, 8", "263m-8"))),
    *(Figures(SPECULATION, f"{count} |", "python -m benchmarks.own_head", (HEADS,), drafted(count))
      for count in (3, 4, 5)),
    *(Figures(REPLAY, f"{rows} row", "python -m benchmarks.state_replay --model DIR",
              ("2026-11-30-state-replay-cpu",),
              tuple(ratio_of_rounds(("seconds", rows, tokens), ("seconds", rows, "1"))
                    for tokens in ("2", "4", "8", "16"))) for rows in ("1", "8", "32", "128")),
    *(Figures(CACHE, f"{slabs} of {pages}", "python -m benchmarks.cache.fragmentation",
              ("2026-11-21-cache-fragmentation",), churn(slabs, pages))
      for slabs, pages in ((120, 547), (200, 547), (700, 62))),
    Figures("docs/explanation/tiers.md", "`python -m benchmarks.tier_store`",
            "python -m benchmarks.tier_store", ("2026-11-28-tier-store",), (plain_over_verified,)),
    *(Figures(TRANSFER, begin, "python -m benchmarks.transfer", ("2026-11-30-transfer",), bundles(key))
      for begin, key in (("processor time of both sides", "bundle_cpu_ratio"),
                         ("processor time of the same, by Python", "python_cpu_ratio"),
                         ("throughput of a bundle", "bundle_median_ratio"),
                         ("throughput of the same, by Python", "python_median_ratio"))),
)  # fmt: skip
