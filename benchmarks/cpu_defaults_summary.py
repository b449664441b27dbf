"""The Markdown summary of the benchmark of the CPU defaults. Pure."""

from statistics import median
from typing import Any


def markdown(found: dict[str, Any]) -> str:
    """Return one table for each number of busy processes: medians, and how they compare with the default."""
    machine, load = found["machine"], found["load"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    cpu = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB; {machine['system']}"
    )
    before, after = (", ".join(map(str, load)) for load in _load_averages(found))
    lines = [
        f"# Defaults on a CPU, {found['date'][:10]}",
        "",
        f"- machine: {cpu}",
        f"- load average at the start: {before}; at the end: {after}",
        f"- versions: Python {machine['python']}, {versions}; commit {machine['commit']}",
        f"- model: {found['model']}",
        f"- closed loop, no prompt twice: {load['input_tokens']} tokens in, {load['output_tokens']} out",
        f"- all engines stay up and are measured in turns; medians of {load['rounds']} rounds, the least and",
        "  the most in brackets; the ratio is the median of the ratios within a round",
        *(f"- greedy tokens as transformers, {each}: {n}" for each, n in found["same_greedy_tokens"].items()),
        "",
    ]
    for busy, table in found["busy_processes"].items():
        lines += [f"## Beside {busy} busy process{'' if busy == '1' else 'es'}", ""]
        lines += ["| at once | | output tokens/s | to the default |", "| --- | --- | --- | --- |"]
        for level in next(iter(table.values())):
            base = table.get("default", {}).get(level)
            lines += [_row(level, name, rates[level], base) for name, rates in table.items()]
        lines.append("")
    return "\n".join(lines)


def _load_averages(found: dict[str, Any]) -> tuple[list[float], list[float]]:
    return found["machine"]["load_average"], found["load_average_at_the_end"]


def _row(level: int, name: str, rates: list[float], base: list[float] | None) -> str:
    ratio = f"{median(a / b for a, b in zip(rates, base, strict=True)):.2f}" if base else "-"
    return f"| {level} | {name} | {median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f}) | {ratio} |"
