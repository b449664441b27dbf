"""Defects of the scheduler, the batch and the engine's step."""

from seeded import Mutant

ENGINE = "server/mamba_server/engine/"
ARRAYS = "tests/unit/engine/test_step_arrays.py"
FORESEEN = "tests/unit/engine/test_memory_foreseen.py"
PACE = "tests/unit/engine/test_step_pace.py"
GRAMMARS = "tests/unit/engine/test_output_grammar.py"
FAIR = "tests/unit/engine/test_fair_prefill.py"

COPY, COPIES = "server/mamba_server/model/hub_copy.py", "tests/unit/model/test_hub_copy.py"

MUTANTS = (
    Mutant(
        "what arrived damaged is taken for a model", COPY,
        "not blob.is_file() or _checksum(blob) != blob.name", "not blob.is_file()", (COPIES,),
    ),
    Mutant(
        "two processes fill one cache at once", COPY,
        "fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass", (COPIES,),
    ),
    Mutant(
        "every start compares a whole model", COPY,
        "checked |= {blob.name: _identity(blob) for path, blob in new.items() if path not in damaged}",
        "checked |= {}", (COPIES,),
    ),
    Mutant(
        "a mask is made before the token that it follows from is known", ENGINE + "scheduler.py",
        "        stalled.update(map(id, self.decoding.undecided))\n", "", (GRAMMARS,),
    ),
    Mutant(
        "the first answer of several takes the others' grammar along", ENGINE + "core.py",
        "grammar.fork(stops) if grammar is not None else None", "grammar", (GRAMMARS,),
    ),
    Mutant(
        "a request whose grammar was made is missing in a recount", ENGINE + "engine_loop.py",
        "                self._disturb()\n                self._add(request, grammar)",
        "                self._add(request, grammar)", ("tests/unit/engine/test_engine_loop.py",),
    ),
    Mutant(
        "a preempted sequence keeps its allocation", ENGINE + "scheduler.py",
        "        sequence.allocation = None\n", "        pass\n",
    ),
    Mutant(
        "the work of a failed step is cached", ENGINE + "core.py",
        "self.cache.advance(schedule.step, failed=True)", "self.cache.advance(schedule.step)",
    ),
    Mutant(
        "a row of NaN is believed", ENGINE + "core.py",
        "if result.finite is not None and not result.finite.all():", "if False:",
        ("tests/unit/engine/test_core.py", "tests/unit/engine/test_runner.py"),
    ),
    Mutant(
        "what came to NaN is donated", ENGINE + "core.py",
        "                self.cache.discard_results(allocation)\n", "                pass\n",
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
        "a recount is never cut short", ENGINE + "cache_maintenance.py",
        "        for _ in self._audit:\n            if self._clock() - began > MAINTENANCE_SECONDS:\n",
        "        for _ in self._audit:\n            if False:\n", ("tests/unit/engine/test_engine_loop.py",),
    ),
    Mutant(
        "all that was flushed is swept in one go", ENGINE + "cache_maintenance.py",
        "            self._cache.sweep()\n            if self._clock() - began > MAINTENANCE_SECONDS:\n",
        "            self._cache.sweep()\n            if False:\n",
        ("tests/unit/engine/test_engine_loop.py",),
    ),
    Mutant(
        "books that were not recounted pass for it", ENGINE + "engine_loop.py",
        "        if not idle or not self._maintenance.due:\n", "        if True:\n",
        ("tests/unit/engine/test_engine_loop.py",),
    ),
    Mutant(
        "a lost device ends nothing", ENGINE + "engine_loop.py",
        "                raise DeviceLost(self._core.device_error)\n", "                pass\n",
        ("tests/unit/engine/test_engine_loop.py",),
    ),
    Mutant(
        "who came in a failed step is unknown to the next", ENGINE + "runner.py",
        "            self._admit(newcomers)\n            sampling_rows",
        "            sampling_rows", ("tests/unit/engine/test_runner.py",),
    ),
    Mutant(
        "a block of rows begins at no multiple of 16 bytes", ENGINE + "token_scores.py",
        "return rows - rows % WHOLE or rows", "return rows", ("tests/unit/engine/test_runner.py",),
    ),
    Mutant(
        "a captured step reads the head once for every 32 rows", ENGINE + "decode_step.py",
        "        for first in range(0, self.rows, LOGIT_ROWS):\n"
        "            some = slice(first, min(first + LOGIT_ROWS, self.rows))",
        "        for first in range(0, self.rows, 32):\n"
        "            some = slice(first, min(first + 32, self.rows))",
        ("tests/unit/engine/test_decode_step.py",),
    ),
    Mutant(
        "pieces are counted from the first decode", "server/mamba_server/model/forward_batch.py",
        "chunk_start=host.chunk_start - decodes", "chunk_start=host.chunk_start",
        ("tests/unit/model/test_forward_batch.py", "tests/unit/model/test_states.py"),
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
        "an admission trusts what was matched before the last one", ENGINE + "admission.py",
        "if match is None or match.evicted:", "if match is None:",
        ("tests/unit/engine/test_scheduler.py",),
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
        "max(self.limits.chunk, budget - len(decodes))", "max(self.limits.chunk, budget)",
        ("tests/unit/engine/test_scheduler.py",),
    ),
    Mutant(
        "a flow in debt is forgotten", ENGINE + "fair_turns.py",
        "        while self._idle and self._idle[0][0] <= self._virtual:\n",
        "        for key in [key for key, member in self.members.items() if not member.active]:\n"
        "            del self.members[key]\n"
        "        while self._idle and self._idle[0][0] <= self._virtual:\n",
        ("tests/unit/engine/test_queue_policy.py",),
    ),
    Mutant(
        "one step puts off any number of sequences", ENGINE + "admission.py",
        "while self._arrived and self._deferred < MAX_DEFERRED:", "while self._arrived:",
        ("tests/unit/engine/test_shared_prefix.py",),
    ),
    Mutant(
        "who takes its last step no longer counts among the running", ENGINE + "admission.py",
        "if self.cache.capacity.admitted >= self.limits.max_running:",
        "if self.running >= self.limits.max_running:",
        ("tests/unit/engine/test_scheduler.py",),
    ),
    Mutant(
        "who came later starts over a prefill that is short of memory", ENGINE + "admission.py",
        "if short is not None and sequence.rank() > short.rank():", "if False:", (FAIR,),
    ),
    Mutant(
        "nobody makes room for an older prefill", ENGINE + "scheduler.py",
        "        self._make_room()\n", "", (FAIR,),
    ),
    Mutant(
        "a piece of a prefill is all or nothing", ENGINE + "scheduler.py",
        "        tokens = aligned_piece(start, tokens, self._room(sequence), self.limits.chunk)\n", "",
        (FAIR,),
    ),
    Mutant(
        "a running prefill goes before any newcomer", ENGINE + "scheduler.py",
        "            budget -= self._start(pieces, budget, step, before=self.waiting.turn(sequence))\n", "",
        (FAIR,),
    ),
    Mutant(
        "the tokens of a running prefill are free", ENGINE + "scheduler.py",
        "        self.waiting.charge(sequence, tokens)\n", "", (FAIR,),
    ),
    Mutant(
        "sequences that ended lead for ever", ENGINE + "admission.py",
        "            self.leading.remove(sequence)\n", "            pass\n",
        ("tests/unit/engine/test_shared_prefix.py",),
    ),
    Mutant(
        "who just came is compared when the leader has passed what they share", ENGINE + "admission.py",
        "            self._defer_arrived()\n", "", ("tests/unit/engine/test_shared_prefix.py",),
    ),
    Mutant(
        "nobody foresees that answers grow", ENGINE + "admission.py",
        "        if not self._fits_forecast(sequence, match):", "        if False:", (FORESEEN,),
    ),
    Mutant(
        "what comes back with those that end is not counted", ENGINE + "memory_forecast.py",
        "alive * left / self._page_size - gone)", "alive * left / self._page_size)", (FORESEEN,),
    ),
    Mutant(
        "answers of long ago are remembered for ever", ENGINE + "answer_lengths.py",
        "if len(self._recent) == WINDOW:", "if False:", (FORESEEN,),
    ),
    Mutant(
        "no more run than the plan assumed", ENGINE + "boot.py",
        "settings.max_running_requests or MOST_RUNNING[device.type]", "made.max_running_requests",
        ("tests/unit/engine/test_boot.py",),
    ),
    Mutant(
        "starts take the time they take", ENGINE + "admission.py",
        "return self.budget is None or self.budget.allows()", "return True",
        ("tests/unit/engine/test_start_budget.py",),
    ),
    Mutant(
        "one slow start is expected of all", ENGINE + "start_budget.py",
        "median(self._recent)", "max(self._recent)", ("tests/unit/engine/test_start_budget.py",),
    ),
    Mutant(
        "a step takes the whole budget beside a stream", ENGINE + "step_pace.py",
        "        if not decodes:\n", "        if True:\n", (PACE,),
    ),
    Mutant(
        "one slow step is believed", ENGINE + "step_pace.py",
        "left / median(self._token_costs)", "left / self._token_costs[-1]", (PACE,),
    ),
    Mutant(
        "a guess from a small piece is trusted for a large one", ENGINE + "step_pace.py",
        "        within = min(fitting, MOST_GROWTH * max(self._last_piece, self._chunk))\n",
        "        within = fitting\n", (PACE,),
    ),
    Mutant(
        "an empty prompt waits for ever", ENGINE + "core.py",
        "if not prompt_len:", "if False:", ("tests/unit/engine/test_core_requests.py",),
    ),
    Mutant(
        "a result on a CUDA device is read before its event", ENGINE + "cuda_stream.py",
        "            event.synchronize()\n", "            pass\n",
        ("tests/unit/engine/test_cuda_stream.py",),
    ),
    Mutant(
        "a launch on a lost device raises where nobody answers for it", ENGINE + "cuda_stream.py",
        "except Exception as error:\n", "except ZeroDivisionError as error:\n",
        ("tests/unit/engine/test_cuda_stream.py",),
    ),
    Mutant(
        "a capture that fails ends the start", ENGINE + "decode_steps.py",
        "except RuntimeError as why:\n", "except ZeroDivisionError as why:\n",
        ("tests/unit/engine/test_decode_steps.py",),
    ),
    Mutant(
        "what a broken capture began is left to the allocator", ENGINE + "cuda_graphs.py",
        "            torch._C._cuda_endAllocateToPool(index, self._pool)  # noqa: SLF001\n", "",
        ("tests/unit/engine/test_cuda_graphs.py",),
    ),
    Mutant(
        "a kernel that fails while serving is left out",
        "kernels/mamba_kernels/dispatch/kernel_or_reference.py",
        "        if self.on_trial:\n", "        if True:\n", ("tests/unit/kernels/test_backend.py",),
    ),
    Mutant(
        "a plan without keys is attended by", "kernels/mamba_kernels/paged_attention/reference.py",
        "if plan.tokens and not (plan.groups or plan.pieces):", "if False:",
        ("tests/unit/kernels/test_paged_attention.py",),
    ),
    Mutant(
        "a lost device is not recognised if Triton reports it", "kernels/mamba_kernels/device_errors.py",
        r"|Triton Error \[CUDA\]: ", "", ("tests/unit/engine/test_core.py",),
    ),
)  # fmt: skip
