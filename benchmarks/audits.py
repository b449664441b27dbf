"""False alarms of audits, and the flipped bits that they find, by family and precision.

Run as `python -m benchmarks.audits [--answers N] [--flips N]`; writes JSON and Markdown to `results`. Every
answer that resumed is audited, of small random checkpoints of all families that are served. Then single bits
of checkpoints are flipped, and an answer that resumes from each is audited.
"""

import argparse
import importlib
import json
import logging
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from typing import Any

import structlog
import torch
from benchmarks.cache.record import write

from mamba_server.engine.audits import resumed_answers
from mamba_server.engine.audits.distance import SCORE_WINDOW
from mamba_server.engine.audits.resumed_answers import ResumedAnswers
from mamba_server.engine.boot import Engine, boot
from mamba_server.wire import AddRequest, SamplingParams, TokenIds
from mamba_settings.engine_settings import EngineSettings

sys.path += [str(Path(__file__).parents[1] / "tests" / folder) for folder in ("models", "support")]
checkpoints: Any = importlib.import_module("testmodels.checkpoints")
flipped_bits: Any = importlib.import_module("flipped_bits")

FAMILIES: dict[str, Callable[[Path], Path]] = {
    "nemotron_h": checkpoints.random_nemotron_h,
    "granitemoehybrid": checkpoints.random_granite,
    "falcon_h1": checkpoints.random_falcon_h1,
    "qwen3_next (experts)": checkpoints.random_qwen3_next,
    "qwen3_5": checkpoints.random_qwen3_5,
    "qwen3_5 (experts)": lambda directory: checkpoints.random_qwen3_5(directory, num_experts=8),
    "bamba": checkpoints.random_bamba,
    "mamba2": checkpoints.random_mamba2,
}
PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32", "state_dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16", "state_dtype": "float32"},
}
FURTHER: dict[str, dict[str, Any]] = {
    "float32, float16 states": {"dtype": "float32", "state_dtype": "float16"},
    "bfloat16, float16 states": {"dtype": "bfloat16", "state_dtype": "float16"},
    "float32, int8": {"dtype": "float32", "quantization": "int8"},
    "bfloat16, int8": {"dtype": "bfloat16", "quantization": "int8"},
}
"""Precisions of two families alone."""
FURTHER_FAMILIES = ("nemotron_h", "granitemoehybrid")
FURTHER_ANSWERS = 500
STRATEGIES = ("ExtraBuffer", "NoBuffer", "ExtraBufferLazy")
ROUND = 8
"""Requests at once."""
ENGINE_ANSWERS = 500
"""Answers after which the next strategy is used."""
LONGEST = 200
"""Tokens after which a conversation ends."""
BITS = {
    "sign": 31,
    "exponent, highest": 30,
    "exponent, lowest": 23,
    "mantissa, highest": 22,
    "mantissa, middle": 12,
}
"""Bits of a float32 state that are flipped."""


HEADING = (
    "| family | precision | answers | diverged | scores: p99.9 | largest | bound "
    "| states: p99.9 | largest | bound |"
)


def start(directory: Path, **settings: Any) -> tuple[Engine, ResumedAnswers]:
    """Boot an engine that audits every answer which resumes."""
    engine = boot(
        EngineSettings(
            model=str(directory), device="cpu", arena_bytes=24 << 20, audit_share=1.0, seed=0, overlap=False,
            max_running_requests=ROUND, **settings,
        ),
        lambda *_: None,
    )  # fmt: skip
    assert isinstance(engine.core.audits, ResumedAnswers)
    return engine, engine.core.audits


class Traffic:
    """Requests that mostly continue one of a few texts, some of which grow by their answers."""

    def __init__(self, rng: random.Random, vocabulary: int) -> None:
        self._rng, self._vocabulary = rng, vocabulary
        self._texts = [self._draw(rng.choice((20, 50, 80))) for _ in range(8)]
        self._prompts: dict[str, list[int]] = {}
        self._numbers = count()

    def _draw(self, tokens: int) -> list[int]:
        return [self._rng.randrange(self._vocabulary) for _ in range(tokens)]

    def request(self) -> AddRequest:
        """Return the next request."""
        number, rng = next(self._numbers), self._rng
        prompt = rng.choice(self._texts) + self._draw(rng.choice((1, 4, 12, 30)))
        params = SamplingParams(
            max_tokens=rng.choice((1, 3, 8, 16)),
            temperature=rng.choice((0.0, 1.0, 1.0)),
            seed=number,
            ignore_eos=True,
        )
        self._prompts[f"r{number}"] = prompt
        return AddRequest(f"r{number}", TokenIds(prompt), params, turn_boundary=len(prompt) - 1)

    def answered(self, request_id: str, answer: list[int]) -> None:
        """Let some conversations go on, and others begin anew."""
        text = self._prompts.pop(request_id) + answer
        if self._rng.random() < 0.5:
            self._texts[self._rng.randrange(8)] = text if len(text) < LONGEST else self._draw(30)


def drain(engine: Engine) -> dict[str, list[int]]:
    """Step until all is answered and audited; return the answers."""
    audits, answers = engine.core.audits, defaultdict[str, list[int]](list)
    while not engine.core.idle or audits.due:
        for delta in engine.core.step():
            answers[delta.request_id] += delta.token_ids
    return answers


@dataclass
class Cell:
    """Audits of one family and precision."""

    family: str
    precision: str
    settings: dict[str, Any]
    answers: int = 0
    seed: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    bounds: dict[str, float] = field(default_factory=dict)
    distances: dict[str, list[float]] = field(default_factory=lambda: {"scores": [], "states": []})

    def run(self, directory: Path, answers: int) -> None:
        """Audit that many more answers, of a new engine."""
        strategy = STRATEGIES[self.seed % len(STRATEGIES)]
        engine, audits = start(directory, strategy=strategy, **self.settings)
        self.bounds = audits.bounds._asdict()
        traffic = Traffic(random.Random(self.seed), min(256, engine.model.vocab_size))
        while audits.log.outcomes.total() < answers:
            for _ in range(ROUND):
                engine.core.add(traffic.request())
            for request_id, answer in drain(engine).items():
                traffic.answered(request_id, answer)
            for kind, distance in audits.log.take_distances():
                self.distances[kind].append(distance)
        for (outcome, _), number in audits.log.outcomes.items():
            self.outcomes[outcome] += number
        self.answers += audits.log.outcomes.total()
        self.seed += 1

    def row(self) -> dict[str, Any]:
        """Return the results as JSON."""
        return {
            "family": self.family,
            "precision": self.precision,
            "answers": self.answers,
            **self.outcomes,
            "states_compared": len(self.distances["states"]),
            "bounds": self.bounds,
            **{kind: quantiles(sorted(self.distances[kind])) for kind in self.distances},
        }


def quantiles(ordered: list[float]) -> dict[str, float]:
    """Return some quantiles."""
    shares = {"median": 0.5, "p99": 0.99, "p99.9": 0.999, "largest": 1.0}
    return {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in shares.items()}


def flipped(directory: Path, flips: int, settings: dict[str, Any]) -> dict[str, float]:
    """Return the share of flipped bits that is found, by bit."""
    shares = {}
    for name, bit in BITS.items():
        rng = random.Random(bit)
        engine, audits = start(directory, strategy="ExtraBuffer", **settings)
        for number in range(flips):
            prompt = [rng.randrange(min(256, engine.model.vocab_size)) for _ in range(49)]
            for turn in ("first", "second"):
                params = SamplingParams(max_tokens=8, temperature=1.0, seed=number, ignore_eos=True)
                engine.core.add(AddRequest(f"{turn}{number}", TokenIds(prompt), params))
                if turn == "second":
                    flipped_bits.flip_state_bit(engine, prompt, bit, rng)
                drain(engine)
        found = sum(count for (outcome, _), count in audits.log.outcomes.items() if outcome == "diverged")
        shares[name] = found / flips
    return shares


def record(results: list[dict[str, Any]], bits: list[dict[str, Any]], seconds: float) -> None:
    """Write the results as JSON and Markdown."""
    total = sum(row["answers"] for row in results)
    wrong = sum(row.get("diverged", 0) for row in results)
    lines = [
        "",
        f"- {total:,} audited answers, {wrong} of them called diverged, in {seconds:,.0f} s",
        f"- scores: worst mean of {SCORE_WINDOW} consecutive differences of log-probabilities, in nats",
        "- states: largest difference of a checkpoint's state, relative to the largest number of the head",
        "- for an answer of fewer tokens than a window, the bound of the scores is larger",
        "",
        HEADING,
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in results:
        numbers = " | ".join(
            f"{row[kind]['p99.9']:.1e} | {row[kind]['largest']:.1e} | {row['bounds'][kind]}"
            for kind in ("scores", "states")
        )
        lines.append(
            f"| {row['family']} | {row['precision']} | {row['answers']:,} | {row.get('diverged', 0)} | "
            f"{numbers} |"
        )
    lines += [
        "",
        "Share of single flipped bits of a float32 state that the audit of one answer finds:",
        "",
        f"| family | precision | {' | '.join(BITS)} |",
        f"| --- | --- | {' | '.join('---:' for _ in BITS)} |",
    ]
    for row in bits:
        shares = " | ".join(f"{row[name]:.2f}" for name in BITS)
        lines.append(f"| {row['family']} | {row['precision']} | {shares} |")
    write("audits", {"answers": results, "bits": bits, "seconds": seconds}, lines)


def main(arguments: list[str]) -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audits", description=__doc__)
    parser.add_argument("--answers", type=int, default=100_000, help="audited answers of all families")
    parser.add_argument("--flips", type=int, default=50, help="flipped bits of each kind in each family")
    parser.add_argument("--seconds", type=float, default=1e9, help="time after which no more audits begin")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    torch.set_num_threads(1)
    # The benchmark waits for every audit, and drops none.
    resumed_answers.MOST_WAITING = 1 << 20
    began = time.monotonic()
    cells = [Cell(family, name, PRECISIONS[name]) for name in PRECISIONS for family in FAMILIES]
    further = [Cell(family, name, FURTHER[name]) for name in FURTHER for family in FURTHER_FAMILIES]
    with tempfile.TemporaryDirectory() as folder:
        for family, make in FAMILIES.items():
            make(Path(folder) / family)
        bits = []
        for cell in cells:
            shares = flipped(Path(folder) / cell.family, options.flips, cell.settings)
            bits.append({"family": cell.family, "precision": cell.precision, **shares})
            print(json.dumps(bits[-1]), flush=True)
        for cell in further:
            cell.run(Path(folder) / cell.family, min(options.answers // 200, FURTHER_ANSWERS))
        for cell in cycle(cells):
            left = options.answers - sum(each.answers for each in (*cells, *further))
            if left <= 0 or time.monotonic() - began > options.seconds:
                break
            cell.run(Path(folder) / cell.family, min(left, ENGINE_ANSWERS))
            print(json.dumps(cell.row()), flush=True)
    record([cell.row() for cell in (*cells, *further)], bits, time.monotonic() - began)


if __name__ == "__main__":
    main(sys.argv[1:])
