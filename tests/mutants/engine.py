"""Defects of the scheduler, the batch and the engine's step."""

from seeded import Mutant

ENGINE = "server/mamba_server/engine/"
ARRAYS = "tests/unit/engine/test_step_arrays.py"

MUTANTS = (
    Mutant(
        "a preempted sequence keeps its allocation", ENGINE + "scheduler.py",
        "        sequence.allocation = None\n", "        pass\n",
    ),
    Mutant(
        "the work of a failed step is cached", ENGINE + "core.py",
        "        self.cache.distrust(schedule.step)\n", "",
    ),
    Mutant(
        "a row of NaN is believed", ENGINE + "core.py",
        "if result.finite is not None and not result.finite.all():", "if False:",
        ("tests/unit/engine/test_core.py", "tests/unit/engine/test_runner.py"),
    ),
    Mutant(
        "what came to NaN is donated", ENGINE + "core.py",
        "                self.cache.condemn(allocation)\n", "                pass\n",
        ("tests/unit/engine/test_core.py",),
    ),
    Mutant(
        "a piece that does not sample is not looked at", ENGINE + "step_arrays.py",
        "checked = sampling + [decodes + i for i, piece in enumerate(pieces) if not piece.final]",
        "checked = sampling",
        (ARRAYS, "tests/unit/engine/test_runner.py"),
    ),
    Mutant(
        "a device that fails step after step stays ready", ENGINE + "core.py",
        "elif self._failures >= FAILURES_IN_A_ROW:", "elif False:", ("tests/unit/engine/test_core.py",),
    ),
    Mutant(
        "a recount is never cut short", ENGINE + "process.py",
        "if self._clock() - began > CHECK_SECONDS:", "if False:", ("tests/unit/engine/test_process.py",),
    ),
    Mutant(
        "a lost device ends nothing", ENGINE + "process.py",
        "                raise DeviceLost(self._core.lost)\n", "                pass\n",
        ("tests/unit/engine/test_process.py",),
    ),
    Mutant(
        "who came in a failed step is unknown to the next", ENGINE + "runner.py",
        "            self._admit(newcomers)\n            sampling_rows",
        "            sampling_rows", ("tests/unit/engine/test_runner.py",),
    ),
    Mutant(
        "the state of a decode is read one row off", ENGINE + "step_arrays.py",
        "slot_in=_join(batch.live[row],", "slot_in=_join(batch.live[np.roll(row, 1)],", (ARRAYS,),
    ),
    Mutant(
        "keys and values go one token late", ENGINE + "step_arrays.py",
        "* page_size + positions % page_size", "* page_size + (positions + 1) % page_size", (ARRAYS,),
    ),
    Mutant(
        "an admission trusts what was matched before the last one", ENGINE + "scheduler.py",
        "            matches.clear()\n", "", ("tests/unit/engine/test_scheduler.py",),
    ),
    Mutant(
        "a prompt waits for one whose prefill has ended", ENGINE + "shared_prefix.py",
        "        if self.leader.allocation is not self.allocation:\n            return False\n", "",
        ("tests/unit/engine/test_shared_prefix.py",),
    ),
    Mutant(
        "prompts of two salts wait for each other", ENGINE + "shared_prefix.py",
        "    if one.salt != other.salt:\n        return 0\n", "",
        ("tests/unit/engine/test_shared_prefix.py",),
    ),
    Mutant(
        "decodes do not count against the budget of a step", ENGINE + "scheduler.py",
        "self.limits.step_tokens - len(decodes))", "self.limits.step_tokens)",
        ("tests/unit/engine/test_scheduler.py",),
    ),
    Mutant(
        "a flow in debt is forgotten", ENGINE + "queue_policy.py",
        "if not flow.items and flow.start <= self._virtual", "if not flow.items",
        ("tests/unit/engine/test_queue_policy.py",),
    ),
    Mutant(
        "one step puts off any number of sequences", ENGINE + "scheduler.py",
        "if held < MOST_HELD:", "if True:", ("tests/unit/engine/test_shared_prefix.py",),
    ),
    Mutant(
        "who takes its last step no longer counts among the running", ENGINE + "scheduler.py",
        "while self.cache.admitted < self.limits.max_running:",
        "while self.running < self.limits.max_running:",
        ("tests/unit/engine/test_scheduler.py",),
    ),
    Mutant(
        "a result on a CUDA device is read before its event", ENGINE + "cuda_stream.py",
        "self._events.pop(id(ticket)).synchronize()", "self._events.pop(id(ticket))",
        ("tests/unit/engine/test_cuda_stream.py",),
    ),
)  # fmt: skip
