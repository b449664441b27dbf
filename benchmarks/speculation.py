"""Tokens per second of a thread with and without drafts: an answer that copies, and five where drafts fail.

Run as `python -m benchmarks.speculation --model DIR [--rows N]`. The model computes every step; the tokens of
the answers are those of a script, so that the share of drafts that are right is that of real text, whatever
the weights are. Ways take turns, step by step; processor time of one thread says the same on a busy machine.
"""

import argparse
import random
import re
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.cache.record import print_and_keep
from benchmarks.checkpoint import existing_checkpoint
from benchmarks.machine import facts
from benchmarks.serve import TINY

from mamba_server.engine.boot import Engine, boot, use_threads
from mamba_server.engine.execution.sampler import SampledTokens
from mamba_server.wire import AddRequest, SamplingParams, TokenIds
from mamba_settings.engine_settings import EngineSettings

ROOT = Path(__file__).resolve().parents[1]
PROMPT = 256
APART = 3
"""Tokens by which the prompt of each further sequence of a batch is longer: each is at another place of the
text."""
WAYS = {"off": "off", "off again": "off", "ngram": "ngram", "auto": "auto", "auto again": "auto"}
"""Value of `--speculation` by the name of its engine. Two engines of one value differ by up to two percent,
because their memory lies elsewhere, so both count."""
Text = tuple[list[int], list[int]]
"""Prompt and answer."""


def words(*names: str) -> list[list[int]]:
    """Return the words of some files of this project as token ids, common to all of them."""
    ids: dict[str, int] = {}
    return [
        [
            ids.setdefault(word, len(ids) + 10)
            for word in re.findall(r"\w+|[^\w\s]", (ROOT / name).read_text())
        ]
        for name in names
    ]


def workloads(tokens: int, vocabulary: int) -> dict[str, Text]:
    """Return a text that copies its prompt with an edit now and then, and five that do not.

    Words beyond a small vocabulary share the ids of others: an id that the model does not have would be read
    from beside its embedding.
    """
    rng = random.Random(3)
    page, other, code = words(
        "docs/explanation/tiers.md", "docs/explanation/routing.md", "server/mamba_server/cache/tree.py"
    )
    edited = [900 + rng.randrange(100) if rng.random() < 0.03 else token for token in page]
    shuffled = rng.sample(page[:PROMPT], PROMPT) * 4
    trap = [token for place in range(400) for token in (21, 22, 23, 24, 1000 + place)]
    texts = {
        "copy with edits": (page[:PROMPT], edited[:tokens]),
        "prose about something else": (page[:PROMPT], other[:tokens]),
        "code": (page[:PROMPT], code[300 : 300 + tokens]),
        "words of the prompt in another order": (page[:PROMPT], shuffled[:tokens]),
        "random tokens": (page[:PROMPT], [rng.randrange(10, 20_000) for _ in range(tokens)]),
        "copies that go on differently": (trap[:PROMPT], trap[PROMPT : PROMPT + tokens]),
    }
    return {
        name: ([each % vocabulary for each in prompt], [each % vocabulary for each in answer])
        for name, (prompt, answer) in texts.items()
    }


def say(engine: Engine, text: list[int]) -> None:
    """Let the engine's sampler choose the tokens of `text`, whatever the logits are."""
    sampler: Any = engine.core._runner._sampler  # type: ignore[attr-defined]  # noqa: SLF001
    if not hasattr(sampler, "chooses"):
        sampler.chooses = sampler.sample
    spoken = torch.tensor(text, dtype=torch.int32)

    def sample(
        logits: torch.Tensor, batches: Any, positions: torch.Tensor, masks: Any = None
    ) -> SampledTokens:
        sampled = sampler.chooses(logits, batches, positions, masks)
        ids = spoken[positions.long().clamp(max=len(spoken) - 1)]
        return SampledTokens(ids, sampled.finite, sampled.logprob, sampled.top_ids, sampled.top_logprobs)

    sampler.sample = sample


def serve(engines: dict[str, Engine], text: Text, name: str, rows: int) -> dict[str, tuple[float, float]]:
    """Return the seconds of this thread and of the clock that each engine takes for the answers of a batch.

    They count from the first token of the last sequence on. Steps of the engines take turns in an order that
    chance decides each time, so that all meet the same machine and none always follows the same other one.
    """
    prompt, answer = text
    whole, count = [*prompt, *answer], len(answer) - APART * (rows - 1)
    params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
    begins = {f"{name} {row}": len(prompt) + APART * row for row in range(rows)}
    for engine in engines.values():
        say(engine, whole)
        for request, begin in begins.items():
            engine.core.add(AddRequest(request, TokenIds(whole[:begin]), params))
    tokens: dict[str, dict[str, list[int]]] = {way: {request: [] for request in begins} for way in engines}
    seconds = dict.fromkeys(engines, (0.0, 0.0))
    rng = random.Random(name)
    while running := [way for way, engine in engines.items() if not engine.core.idle]:
        rng.shuffle(running)
        for way in running:
            is_timed = all(tokens[way].values())
            work, clock = time.thread_time(), time.perf_counter()
            for delta in engines[way].core.step():
                tokens[way][delta.request_id] += delta.token_ids
            if is_timed:
                before = seconds[way]
                seconds[way] = (
                    before[0] + time.thread_time() - work, before[1] + time.perf_counter() - clock
                )  # fmt: skip
    for way, spoken in tokens.items():
        for request, begin in begins.items():
            if spoken[request] != whole[begin : begin + count]:
                raise SystemExit(f"{request}, {way}: not the answer of the script: {spoken[request][:9]}")
    return seconds


def booted(model: Path, drafts: int, speculation: str) -> Engine:
    settings = EngineSettings(
        model=str(model), device="cpu", seed=0, arena_bytes=400 << 20, prefix_caching=False,
        speculation=speculation, speculative_tokens=drafts, audit_share=0,
    )  # fmt: skip
    return boot(settings, lambda *_: None)


def measured(engines: dict[str, Engine], texts: dict[str, Text], rounds: int, rows: int) -> dict[str, Any]:
    """Return the seconds of each way and workload, of this thread and of the clock, and the drafts."""
    record: dict[str, Any] = {name: {way: [] for way in engines} for name in texts}
    for number in range(rounds):
        for name, text in texts.items():
            earlier_counts = {way: counts(engine) for way, engine in engines.items()}
            seconds = serve(engines, text, f"{name} {number}", rows)
            for way, engine in engines.items():
                record[name][way].append(seconds[way])
                both = zip(counts(engine), earlier_counts[way], strict=True)
                record[name][f"drafts of {way}"] = [after - earlier for after, earlier in both]
            print(name, {way: round(seconds[way][0], 3) for way in engines}, flush=True)
    return record


def counts(engine: Engine) -> tuple[float, float]:
    """Return the tokens that were drafted and accepted."""
    speculation = engine.core.speculation
    if speculation is None:
        return 0.0, 0.0
    values = speculation.drafts.counters()
    drafted, accepted = (
        sum(value for name, value in values.items() if name.startswith(f"{kind}_tokens_total"))
        for kind in ("draft", "accepted_draft")
    )
    return drafted, accepted


def markdown(record: dict[str, Any]) -> str:
    """Return the rates of all rounds together, relative to the mean of both engines without drafts. Pure."""
    rows = record["rows"]
    sequences = "one sequence" if rows == 1 else f"{rows} sequences"
    lines = [
        f"# Speculation: {record['model']}, {record['drafts']} drafts, {sequences}, one thread",
        "",
        f"- machine: {record['machine']['processor']}, load {record['machine']['load_average']}",
        f"- {record['rounds']} rounds of {record['tokens']} tokens a sequence; steps of all ways take turns",
        "- rates relative to the mean of both engines with `off`, by seconds of the thread (by the clock)",
        "",
        f"| answer | {' | '.join((*WAYS, 'both auto'))} | off, tokens/s | accepted of drafted (auto) |",
        "| --- |" + " --- |" * (len(WAYS) + 3),
    ]
    for name, seconds in record["workloads"].items():
        totals = {way: [sum(column) for column in zip(*seconds[way], strict=True)] for way in WAYS}
        totals["both off"], totals["both auto"] = (
            [(first + second) / 2 for first, second in zip(totals[way], totals[f"{way} again"], strict=True)]
            for way in ("off", "auto")
        )
        work, clock = totals["both off"]
        ratios = [
            f"{work / totals[way][0]:.3f} ({clock / totals[way][1]:.2f})" for way in (*WAYS, "both auto")
        ]
        rate = rows * record["rounds"] * record["tokens"] / work
        drafted, accepted = seconds["drafts of auto"]
        columns = [name, *ratios, f"{rate:.0f}", f"{accepted:.0f} of {drafted:.0f}"]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation", description=__doc__)
    parser.add_argument("--model", type=existing_checkpoint, default=TINY)
    parser.add_argument("--drafts", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1, help="sequences that decode together (1)")
    parser.add_argument("--out", type=Path, help="a file for all numbers as JSON")
    options = parser.parse_args()
    rows = options.rows
    engines = {way: booted(options.model, options.drafts, each) for way, each in WAYS.items()}
    for engine in engines.values():
        use_threads(engine, 1)
    texts = workloads(options.tokens + APART * (rows - 1), engines["off"].model.vocab_size)
    record = {
        "model": options.model.name,
        "drafts": options.drafts,
        "tokens": options.tokens,
        "rounds": options.rounds,
        "rows": rows,
        "machine": facts(),
        "workloads": measured(engines, texts, options.rounds, rows),
    }
    print_and_keep(record, markdown(record), options.out)


if __name__ == "__main__":
    main()
