"""Cost of audits: processor time of an engine with and without them, on conversations that mostly resume.

Run as `python -m benchmarks.audit_cost [--rounds N]`; writes JSON and Markdown to `results`. One engine of
the shipped model answers the same requests in turns, twice without audits, with the default share, and
auditing every answer. The last one shows what one audit costs, which the default share scales down; the
second turn without audits shows what the machine adds.
"""

import argparse
import logging
import random
import statistics
import sys
import time
from typing import Any

import structlog
import torch
from benchmarks.cache.record import write
from benchmarks.serve import TINY

from mamba_server.engine.audits.resumed_answers import ResumedAnswers
from mamba_server.engine.boot import Engine, boot
from mamba_server.engine.stepping.answer_audits import NoAudits
from mamba_server.wire import AddRequest, SamplingParams, TokenIds
from mamba_settings.engine_settings import EngineSettings

DEFAULT_SHARE = float(EngineSettings.model_fields["audit_share"].default)
SHARES = {"none": 0.0, "again": 0.0, "default": DEFAULT_SHARE, "all": 1.0}
AT_ONCE = 8
TURNS = 4
STEM, QUESTION, OUTPUT = 256, 32, 32
"""Tokens of a system prompt, of a question and of an answer."""


def start() -> tuple[Engine, ResumedAnswers]:
    """Boot an engine on one core."""
    settings: dict[str, Any] = {"model": str(TINY), "device": "cpu", "arena_bytes": 64 << 20, "seed": 0}
    engine = boot(
        EngineSettings(**settings, audit_share=1.0, overlap=False, max_running_requests=AT_ONCE),
        lambda *_: None,
    )
    assert isinstance(engine.core.audits, ResumedAnswers)
    return engine, engine.core.audits


def converse(engine: Engine, salt: str, seed: int) -> tuple[float, float, int]:
    """Answer some conversations; return the seconds of answers, those of audits, and the answers."""
    rng, answers = random.Random(seed), 0
    stem = [rng.randrange(256) for _ in range(STEM)]
    texts = {f"{seed}-{index}": list(stem) for index in range(AT_ONCE)}
    busy = idle = 0.0
    for turn in range(TURNS):
        for name, text in texts.items():
            text += [rng.randrange(256) for _ in range(QUESTION)]
            params = SamplingParams(max_tokens=OUTPUT, temperature=0.0, ignore_eos=True)
            request = AddRequest(
                f"{name}-{turn}", TokenIds(text), params, turn_boundary=len(text) - 1, cache_salt=salt
            )
            assert engine.core.add(request) is None
        began = time.process_time()
        while engine.core.sequences:
            for delta in engine.core.step():
                texts[delta.request_id.rpartition("-")[0]] += delta.token_ids
        ended = time.process_time()
        while not engine.core.idle or engine.core.audits.due:
            engine.core.step()
        busy, idle = busy + ended - began, idle + time.process_time() - ended
        answers += len(texts)
    return busy, idle, answers


def main(arguments: list[str]) -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="rounds of all three engines")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    torch.set_num_threads(1)
    engine, audits = start()
    rounds: list[dict[str, tuple[float, float, int]]] = []
    for number in range(options.rounds + 1):
        # Each has its turn in each place equally often.
        order = [*SHARES][number % 4 :] + [*SHARES][: number % 4]
        measured = {}
        for name in order:
            audits.share = SHARES[name]
            engine.core.audits = audits if audits.share else NoAudits()
            # Nothing is shared with other turns.
            measured[name] = converse(engine, name, number)
        if number:
            rounds.append(measured)
    record(rounds, dict(audits.log.outcomes))


def record(rounds: list[dict[str, tuple[float, float, int]]], outcomes: dict[Any, int]) -> None:
    """Write the results as JSON and Markdown."""

    def ratio(name: str) -> float:
        return statistics.median(each[name][0] / each["none"][0] for each in rounds)

    busy = sum(each["none"][0] for each in rounds)
    idle = sum(each["all"][1] for each in rounds) / busy
    scoring = ratio("all") - 1
    found = {
        "rounds": [{name: list(values) for name, values in each.items()} for each in rounds],
        "busy_ratio_again": ratio("again"),
        "busy_ratio_default": ratio("default"),
        "busy_ratio_all": ratio("all"),
        "audit_share_of_busy_time": idle,
        "share": DEFAULT_SHARE,
        "cost_at_default_share": DEFAULT_SHARE * (idle + max(0.0, scoring)),
        "outcomes": {" ".join(key): count for key, count in outcomes.items()},
    }
    longest = STEM + TURNS * QUESTION + (TURNS - 1) * OUTPUT
    rows = {
        "busy time without audits once more, relative to none (median)": f"{found['busy_ratio_again']:.4f}",
        "busy time with the default share, relative to none (median)": f"{found['busy_ratio_default']:.4f}",
        "busy time with every answer scored, relative to none (median)": f"{found['busy_ratio_all']:.4f}",
        "idle time of auditing every answer, relative to busy time": f"{idle:.3f}",
        f"cost at the default share of {DEFAULT_SHARE}": f"{found['cost_at_default_share']:.3%}",
    }
    lines = [
        "",
        f"- {len(rounds)} rounds of {AT_ONCE * TURNS} answers of {OUTPUT} tokens; seconds are of a processor",
        f"- prompts of {STEM + QUESTION} to {longest} tokens",
        "- busy: while requests run; idle: audits afterwards",
        "",
        "| | |",
        "| --- | ---: |",
        *(f"| {name} | {value} |" for name, value in rows.items()),
    ]
    write("audit-cost", found, lines)


if __name__ == "__main__":
    main(sys.argv[1:])
