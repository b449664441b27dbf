"""Four generated workloads for the cache replay, beside recorded traces: what is asked again, and when.

Lengths and reuse follow published figures, named at each generator; the seed is fixed, so all runs see the
same requests. A prompt is a list of segments (text that came from one place); blocks of it that hold the
same pieces of the same segments are equal, as page hashes would find. Pure.
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator

from mamba_cli.bench.traces import Arrival
from mamba_cli.fleet.workload import TraceWorkload

PAGE = 256
Segment = tuple[int, int]
"""(id, tokens)."""


class _Writer:
    """Turns segments into arrivals; equal pieces at equal places of a block get equal block ids."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self._segments = itertools.count()
        self._blocks: dict[tuple[tuple[int, int], ...], int] = {}
        self._timed: list[tuple[float, int, Arrival]] = []

    def segment(self, tokens: float) -> Segment:
        """Return a new segment of about `tokens` tokens."""
        return next(self._segments), max(1, round(tokens))

    def lognormal(self, mean: float, sigma: float) -> float:
        """Draw a positive number with that mean; `sigma` of its logarithm."""
        return math.exp(self.rng.gauss(math.log(mean) - sigma * sigma / 2, sigma))

    def geometric(self, mean: float) -> int:
        """Draw from 1, 2, ... with that mean."""
        return 1 + int(math.log(1 - self.rng.random()) / math.log(1 - 1 / mean)) if mean > 1 else 1

    def zipf(self, items: int, exponent: float) -> Callable[[], int]:
        """Draw from 0 .. items - 1, the first the most popular."""
        weights = list(itertools.accumulate((1 + i) ** -exponent for i in range(items)))
        return lambda: self.rng.choices(range(items), cum_weights=weights)[0]

    def ask(self, at: float, prompt: list[Segment], outputs: float) -> None:
        """Add one request at second `at`."""
        number = len(self._timed)
        self._timed.append((at, number, Arrival(at, *self._cut(prompt, max(1, round(outputs))))))

    def _cut(self, prompt: list[Segment], outputs: int) -> tuple[int, int, tuple[int, ...]]:
        ids: list[int] = []
        pieces: list[tuple[int, int]] = []
        filled = total = 0
        for name, tokens in prompt:
            total += tokens
            at = 0
            while at < tokens:
                pieces.append((name, at))
                take = min(PAGE - filled, tokens - at)
                at, filled = at + take, filled + take
                if filled == PAGE:
                    ids.append(self._blocks.setdefault(tuple(pieces), len(self._blocks)))
                    pieces, filled = [], 0
        if pieces:
            # Not whole: an id of its own, nothing can match it.
            ids.append(self._blocks.setdefault((*pieces, (-1, len(self._timed))), len(self._blocks)))
        return total, outputs, tuple(ids)

    def workload(self, name: str, requests: int) -> TraceWorkload:
        """Return the first `requests` of the workload in order of time."""
        first = heapq.nsmallest(requests, self._timed)
        return TraceWorkload(name, PAGE, [arrival for _, _, arrival in first])


def _starts(rng: random.Random, rate: float, seconds: float) -> Iterator[float]:
    """Yield Poisson arrivals, `rate` a second."""
    at = 0.0
    while (at := at + rng.expovariate(rate)) < seconds:
        yield at


def chat(requests: int = 8000, seed: int = 0) -> TraceWorkload:
    """Return conversations whose history grows, behind the system prompts of a few applications.

    Published: inputs of 12,035 and outputs of 343 tokens on average (conversation trace of Mooncake, Qin et
    al., FAST 2025); two turns on average, more than half of the conversations one (LMSYS-Chat-1M, Zheng et
    al., 2023). Assumed: one conversation in ten is long; log-normal times to the next turn, a minute or so.
    """
    it = _Writer(f"chat {seed}")
    applications = [it.segment(it.lognormal(900, 0.8)) for _ in range(12)]
    application = it.zipf(len(applications), 1.1)
    for start in _starts(it.rng, 1.7, requests / 2.6):
        at, turns = start, it.geometric(1.6)
        if it.rng.random() < 0.1:
            turns += it.geometric(8)
        # Some bring a document, most a few lines.
        first = it.lognormal(19_000, 1.0) if it.rng.random() < 0.5 else it.lognormal(400, 1.0)
        history = [applications[application()], it.segment(first)]
        for _ in range(turns):
            output = it.lognormal(343, 0.8)
            it.ask(at, history, output)
            history = [*history, it.segment(output), it.segment(it.lognormal(200, 1.2))]
            at += 5 + it.lognormal(90, 1.2)
    return it.workload("chat", requests)


def documents(requests: int = 3000, seed: int = 0) -> TraceWorkload:
    """Return one document, many questions: each reader asks several about one document.

    Published: documents of some 20,000 tokens (LooGLE, Li et al., 2023). Assumed: four questions a reader, a
    minute apart on average; popularity of documents by Zipf's law, exponent 0.4.
    """
    it = _Writer(f"documents {seed}")
    system = it.segment(220)
    library = [it.segment(it.lognormal(20_000, 0.5)) for _ in range(1500)]
    document = it.zipf(len(library), 0.4)
    for start in _starts(it.rng, 0.5, requests / 1.3):
        at, text = start, library[document()]
        for _ in range(it.geometric(4.0)):
            it.ask(at, [system, text, it.segment(it.lognormal(40, 0.5))], it.lognormal(80, 0.8))
            at += it.rng.expovariate(1 / 60)
    return it.workload("documents", requests)


def agents(requests: int = 6000, seed: int = 0) -> TraceWorkload:
    """Return agents in loops: a call and its result are appended; some steps are tried again, some fork.

    Published: inputs of 8,596 and outputs of 182 tokens on average (tool and agent trace of Mooncake, Qin et
    al., FAST 2025; 0.59 of it reused, here 0.85). Assumed: steps follow within seconds, one in ten waits for
    a slow tool; one in eight starts over from an earlier one, one in twelve forks into two to four.
    """
    it = _Writer(f"agents {seed}")
    kinds = [[it.segment(it.lognormal(2_500, 0.5))] for _ in range(15)]
    kind = it.zipf(len(kinds), 1.0)

    def loop(at: float, path: list[Segment], steps: int) -> None:
        trail = [path]
        for _ in range(steps):
            path, output = trail[-1], it.lognormal(182, 0.7)
            it.ask(at, path, output)
            at += output / 60 + (it.lognormal(120, 1.0) if it.rng.random() < 0.1 else it.lognormal(4, 1.0))
            draw = it.rng.random()
            if draw < 1 / 8 and len(trail) > 1:
                del trail[-it.rng.randint(1, min(3, len(trail) - 1)) :]
            elif draw < 1 / 8 + 1 / 12:
                for _ in range(it.rng.randint(1, 3)):
                    loop(at, [*path, it.segment(it.lognormal(300, 0.8))], max(1, steps // 3))
            trail.append([*trail[-1], it.segment(output), it.segment(it.lognormal(700, 1.3))])

    for start in _starts(it.rng, 1.1, requests / 5.0):
        task = it.segment(it.lognormal(3_000, 1.0))
        loop(start, [*kinds[kind()], task], it.geometric(4))
    return it.workload("agents", requests)


def retrieval(requests: int = 6000, seed: int = 0) -> TraceWorkload:
    """Return prompts of retrieved chunks in order of relevance and a question: only the first are shared.

    Published: three in a hundred documents draw about sixty per cent of the requests (RAGCache, Jin et al.,
    2024, on MMLU over Wikipedia). Assumed: chunks of 1,000 tokens, four to a prompt out of eight of a topic.
    """
    it = _Writer(f"retrieval {seed}")
    system = it.segment(400)
    topics = [[it.segment(it.lognormal(1_000, 0.3)) for _ in range(8)] for _ in range(4000)]
    topic = it.zipf(len(topics), 0.95)
    for at in _starts(it.rng, 4.0, requests / 3.0):
        chunks = list(topics[topic()])
        # More relevant ones tend to come first.
        chunks.sort(key=lambda chunk: chunk[0] % 8 + it.rng.expovariate(1 / 4))
        it.ask(at, [system, *chunks[:4], it.segment(it.lognormal(40, 0.5))], it.lognormal(150, 0.7))
    return it.workload("retrieval", requests)


GENERATED: tuple[Callable[..., TraceWorkload], ...] = (chat, documents, agents, retrieval)
