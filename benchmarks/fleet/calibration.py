"""Response times of an undisturbed live fleet, and the simulated fleet that is as fast.

Asked are new prompts, and such prompts with more behind them, one at a time, before anything is compared. Of
the times to the first token a part is the same for all, a part goes by the prompt's tokens, by those that are
computed, by what attention reads, and by whether the prompt goes on from a checkpoint. Pure.
"""

import itertools
from collections import defaultdict
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from mamba_cli.bench.samples import Sample
from mamba_cli.fleet.engine_profile import EngineProfile
from mamba_cli.fleet.environment import Machine
from mamba_planner.arithmetic import prefill_work
from mamba_planner.constraints import Constraints

WIDE = 8
"""Sequences that decode at once while their cost is measured."""
LEAST = 1e-9
Parts = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FleetFit:
    """Fitted times of a fleet: of the engines, and of everything around them."""

    profile: EngineProfile
    machine: Machine

    def numbers(self) -> dict[str, float]:
        """Return the coefficients in readable form."""
        own, around = self.profile, self.machine
        jitter = sorted(around.jitter) or [0.0]
        return {
            "prefill_tokens_per_second": round(own.prefill_tokens_per_second),
            "attention_ratio": round(own.attention_ratio, 6),
            "resume_seconds": round(own.resume_seconds, 5),
            "step_seconds": round(own.step_seconds, 5),
            "sequence_seconds": round(own.sequence_seconds, 6),
            "transit_seconds": round(around.transit_seconds, 5),
            "transit_token_seconds": round(around.transit_token_seconds, 8),
            "jitter_p95": round(jitter[int(0.95 * len(jitter))], 5),
            "cores": round(around.cores, 2),
            "cores_used": round(around.used, 2),
        }


@dataclass(frozen=True, slots=True)
class Calibration:
    """`alone`: one at a time; `together`: `WIDE` at once at one engine, in groups that follow each other.

    `cores` were left by what the fleet takes when nobody asks; each second of a request that was alone took
    `used` of them.
    """

    alone: list[Sample]
    together: list[Sample]
    cores: float
    used: float

    def fit(self, slabs: int) -> FleetFit:
        """Fit a fleet whose engines have `slabs` state slots.

        By medians of requests alike, so that a moment in which something else had the cores decides nothing.
        """
        well = [each for each in self.alone if each.error is None and each.ttft is not None]
        cells: dict[tuple[int, int], list[float]] = defaultdict(list)
        for each in well:
            cells[each.prompt_tokens, each.cached_tokens].append(each.ttft or 0.0)
        first = np.array([median(times) for times in cells.values()])
        parts = np.array([_parts(*cell) for cell in cells])
        # Each relative to its own time: the short ones are what the traces have most of.
        coefficients = non_negative(parts / first[:, None], np.ones(len(first)))
        same, token, resumed, computed, attention = map(float, coefficients)
        one = median(each.tpot for each in well if each.tpot is not None)
        many = median(each.tpot for each in self.together if each.tpot is not None)
        sequence = max(LEAST, (many - one) / (WIDE - 1))
        step = max(LEAST, one - sequence)
        computed = max(computed, LEAST)
        usual = Constraints()
        profile = EngineProfile(
            name="live", origin="fitted to the same fleet", prefill_tokens_per_second=1 / computed,
            attention_ratio=attention / computed, resume_seconds=resumed, step_seconds=step,
            sequence_seconds=sequence, chunk_tokens=usual.chunked_prefill_tokens, max_running=32, slabs=slabs,
            tokens_per_state=64, page_tokens=usual.page_size, track_interval=usual.track_interval,
            strategy="ExtraBufferLazy",
        )  # fmt: skip
        jitter = (
            (each.ttft or 0.0) - float(coefficients @ _parts(each.prompt_tokens, each.cached_tokens))
            for each in well
        )
        machine = Machine(self.cores, self.used, max(0.0, same - step), token, tuple(jitter))
        return FleetFit(profile, machine)


def _parts(prompt: int, resumed: int) -> Parts:
    """Return the parts of a time to first token that `fit` distinguishes."""
    attention = prefill_work(resumed, prompt, 1.0) - (prompt - resumed)
    return np.array([1.0, prompt, float(resumed > 0), prompt - resumed, attention])


def non_negative(parts: Parts, times: Parts) -> Parts:
    """Solve least squares with no coefficient below zero. `parts`: [times, coefficients].

    Tries every choice of coefficients that are zero: exact, and fast for a handful of coefficients.
    """
    count = parts.shape[1]
    best, least = np.zeros(count), float(times @ times)
    for kept in itertools.chain.from_iterable(
        itertools.combinations(range(count), size) for size in range(1, count + 1)
    ):
        some, *_ = np.linalg.lstsq(parts[:, kept], times, rcond=None)
        apart = float(((parts[:, kept] @ some - times) ** 2).sum())
        if (some >= 0).all() and apart < least:
            best, least = np.zeros(count), apart
            best[list(kept)] = some
    return best
