"""The report as tables for the terminal."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2e": "end to end",
}


def render(report: dict[str, Any]) -> RenderableType:
    """Return tables of latencies, rates and, if there are any, errors."""
    latency = Table(title="latency, ms", title_justify="left")
    latency.add_column("")
    columns = ("mean", "p50", "p90", "p95", "p99", "max")
    for name in columns:
        latency.add_column(name, justify="right")
    for key, words in LATENCIES.items():
        statistics = report["latency_ms"][key]
        latency.add_row(words, *(f"{statistics[name]:,.1f}" if statistics else "-" for name in columns))
    return Group(latency, _rates(report), *([_errors(report)] if report["requests"]["failed"] else []))


def _rates(report: dict[str, Any]) -> Table:
    requests, tokens, rates = report["requests"], report["tokens"], report["rates"]
    table = Table(show_header=False, title="run", title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    table.add_row("requests", f"{requests['ok']} ok, {requests['failed']} failed")
    table.add_row("seconds", f"{report['seconds']:,.2f}")
    table.add_row("most in flight", f"{requests['peak_concurrency']}")
    table.add_row("requests/s", f"{rates['requests_per_second']:,.2f}")
    table.add_row("output tokens/s", f"{rates['output_tokens_per_second']:,.1f}")
    table.add_row("all tokens/s", f"{rates['total_tokens_per_second']:,.1f}")
    table.add_row("prompt tokens", f"{tokens['prompt']:,}")
    table.add_row("resumed from cache", f"{tokens['cached']:,} ({100 * tokens['cached_share']:.1f} %)")
    if before := tokens.get("cached_before"):
        table.add_row("cached before the run", f"{before:,} ({100 * before / tokens['prompt']:.1f} %)")
    goodput = report["goodput"]
    if limits := [f"{name} {limit:g} ms" for name, limit in goodput["slo_ms"].items() if limit is not None]:
        share = f"{goodput['requests_per_second']:,.2f}/s, {100 * goodput['attainment']:.1f} %"
        table.add_row(f"goodput ({', '.join(limits)})", share)
    return table


def _errors(report: dict[str, Any]) -> Table:
    table = Table(title="errors", title_justify="left")
    table.add_column("kind")
    table.add_column("requests", justify="right")
    for kind, count in report["requests"]["errors"].items():
        table.add_row(Text(kind), str(count))
    return table
