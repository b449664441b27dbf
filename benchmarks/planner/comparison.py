"""The plan of a case beside what each strategy serves.

Best is the most tokens of prompts and answers that end in a second of simulated time, at the declared
concurrency. Every strategy that fits is run, with states of the planned type: that type is a rule of
precision and of what fits, never a guess at speed. The pace of the steps is the engine's own in all of them,
so no strategy buys throughput with slower steps.
"""

from dataclasses import dataclass, replace

from benchmarks.planner.case import Case
from benchmarks.planner.engine import EngineResult, engine, served
from benchmarks.planner.step_time import StepTime
from benchmarks.planner.traffic import Traffic

from mamba_planner.errors import InsufficientMemory
from mamba_planner.memory_plan import MemoryPlan
from mamba_planner.planner import plan
from mamba_planner.strategy import MOST_ROBUST_FIRST


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case: what was chosen, and what each strategy served. `estimates`: the planner's, relative."""

    case: Case
    chosen: MemoryPlan
    plans: dict[str, MemoryPlan]
    served: dict[str, EngineResult]

    @property
    def best(self) -> str:
        return max(self.served, key=lambda name: self.served[name].tokens_per_second)

    @property
    def loss(self) -> float:
        """Share of the best throughput that the choice gives away."""
        best = self.served[self.best].tokens_per_second
        return 1 - self.served[self.chosen.strategy].tokens_per_second / best


def judge(case: Case, *, length: float = 1.0) -> CaseResult:
    """Plan the case and run all strategies on the same traffic; `length`: of a run, times the usual.

    Raises InsufficientMemory where the planner refuses the case.
    """
    chosen = plan(case.model, case.constraints, case.device, None, case.workload)
    plans: dict[str, MemoryPlan] = {}
    results: dict[str, EngineResult] = {}
    for name in MOST_ROBUST_FIRST:
        fixed = replace(case.constraints, strategy=name, state_dtype=chosen.state_dtype)
        try:
            memory_plan = plan(case.model, fixed, case.device, None, case.workload)
        except InsufficientMemory:
            continue
        core, gpu = engine(memory_plan, fixed, StepTime(case.model, memory_plan, case.gpu))
        traffic = Traffic(case.shape, case.number, case.longest)
        width = case.shape.concurrency
        plans[name] = memory_plan
        results[name] = served(
            core, gpu, traffic, round(length * (40 + 6 * width)), round(length * (20 + 4 * width))
        )
    return CaseResult(case, chosen, plans, results)
