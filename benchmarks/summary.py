"""The Markdown summary of a serving benchmark. Pure."""

from typing import Any


def markdown(found: dict[str, Any]) -> str:
    """Return a table for each checkpoint, preceded by the machine and the tools."""
    machine, load = found["machine"], found["load"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    where = machine["accelerator"] or f"{machine['processor']}, {found['threads']} threads"
    options = " ".join(found["engine_options"]) or "none"
    head = [
        f"# Serving, {found['date'][:10]}",
        "",
        f"- machine: {where}; {machine['cores']} cores, {machine['memory_gib']} GiB; {machine['system']}",
        f"- load average at the start: {', '.join(map(str, machine['load_average']))}",
        f"- versions: Python {machine['python']}, {versions}; commit {machine['commit']}",
        f"- {found['dtype']} on {found['device']}; engine options: {options}",
        f"- closed loop, no prompt twice: {load['input_tokens']} tokens in, {load['output_tokens']} out",
        "- transformers: `generate` with static batches of the same size, in the same run; its plain PyTorch",
        "  path, without its optional CUDA kernels (causal_conv1d, mamba_ssm)",
        "",
    ]
    return "\n".join(head + [line for model in found["models"] for line in _model(model)])


def _model(model: dict[str, Any]) -> list[str]:
    lines = [
        f"## {model['model']}",
        "",
        f"Greedy tokens equal to those of transformers: {model['greedy_tokens_equal']}.",
        "",
        "| at once | | output tokens/s | TTFT p50, ms | TTFT p99, ms | TPOT p50, ms | E2E p50, ms | failed |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for level in model["levels"]:
        lines += [_row(level["concurrency"], who, level[who]) for who in ("engine", "transformers")]
    return [*lines, ""]


def _row(level: int, who: str, made: dict[str, Any]) -> str:
    def at(name: str, rank: str) -> str:
        numbers = made["latency_ms"][name]
        return f"{numbers[rank]:,.1f}" if numbers else "-"

    rate = f"{made['rates']['output_tokens_per_second']:,.1f}"
    cells = (at("ttft", "p50"), at("ttft", "p99"), at("tpot", "p50"), at("e2e", "p50"))
    return f"| {level} | {who} | {rate} | {' | '.join(cells)} | {made['requests']['failed']} |"
