"""Defects of the planner: choice, candidates, arithmetic, checkpoint spacing."""

from seeded import Mutant

PLANNER = "operator/mamba_planner/"
SPACING = "operator/mamba_planner/checkpoint_spacing.py"
UNIT = "tests/unit/planner/"
PLAN, CANDIDATES, CHOICE = UNIT + "test_planner.py", UNIT + "test_candidates.py", UNIT + "test_choice.py"
ARITHMETIC, THROUGHPUT = UNIT + "test_arithmetic.py", UNIT + "test_throughput.py"
MEMORY, CONSTRAINTS = UNIT + "test_memory.py", UNIT + "test_constraints.py"
OTHER_SIZES = UNIT + "test_other_sizes.py"
PLACEMENT = "tests/unit/cache/test_placement.py"

MUTANTS = (
    Mutant(
        "the headroom forgets the padding slab", PLANNER + "planner.py",
        '    "padding slab",\n    "slots of running', '    "slots of running', (PLAN,),
    ),
    Mutant(
        "a pure recurrent model's padding is one of its slots", PLANNER + "candidates.py",
        "return self._taken if self.shape.page else self.slabs - 1",
        "return self._taken if self.shape.page else self.slabs", (PLAN,),
    ),
    Mutant(
        "the padding's pages are lent out", PLANNER + "candidates.py",
        "return (self.slabs - 1 - self._taken) * self.shape.pages_per_slab",
        "return (self.slabs - self._taken) * self.shape.pages_per_slab", (PLAN,),
    ),
    Mutant(
        "another size is planned for as if its GPU were empty", PLANNER + "memory.py",
        "max(memory - (self.memory - self.free), 0)", "memory", (OTHER_SIZES,),
    ),
    Mutant(
        "another size takes 16-bit states where 32-bit ones fit", PLANNER + "choice.py",
        'each.state_dtype == "float32" and each.running >= wanted]', "each.running >= wanted]",
        (OTHER_SIZES, CHOICE, PLAN),
    ),
    Mutant(
        "the same size told in another way is the next one", PLANNER + "gpu_sizes.py",
        "ONE_SIZE = 1.08", "ONE_SIZE = 1.0", (UNIT + "test_gpu_sizes.py",),
    ),
    Mutant(
        "a single sequence is said to be bound by slots", PLANNER + "planner.py",
        "if each.running <= 1:", "if each.running < 1:", (PLAN,),
    ),
    Mutant(
        "a strategy that is asked for is a suggestion", PLANNER + "planner.py",
        "if constraints.strategy in (None, each.strategy)\n", "if True\n", (PLAN,),
    ),
    Mutant(
        "the ledger counts tracking slots as free", PLANNER + "planner.py",
        "live = each.planned * each.slots_each", "live = each.planned", (PLAN,),
    ),
    Mutant(
        "the padding slab is planned with", PLANNER + "candidates.py",
        "free = slabs - 1", "free = slabs", (CANDIDATES,),
    ),
    Mutant(
        "overlap takes no second tracking slot", PLANNER + "strategy.py",
        "strategy, 2 if overlap else 1, tracks_decode=True", "strategy, 1, tracks_decode=True",
        (UNIT + "test_strategy.py",),
    ),
    Mutant(
        "a page begun is not counted", PLANNER + "candidates.py",
        "return -(-tokens // self.page_size) if self.page else 0",
        "return tokens // self.page_size if self.page else 0", (CANDIDATES,),
    ),
    Mutant(
        "a slot is thought as small as a page", PLANNER + "candidates.py",
        "(self.pages(tokens) + slots * self.pages_per_slab)", "(self.pages(tokens) + slots)", (CANDIDATES,),
    ),
    Mutant(
        "the longest sequence has no slot of its own", PLANNER + "candidates.py",
        "(free - slots) * shape.pages_per_slab * shape.page_size",
        "free * shape.pages_per_slab * shape.page_size",
        (CANDIDATES,),
    ),
    Mutant(
        "a declared concurrency is planned although it does not fit", PLANNER + "candidates.py",
        "planned = min(running, workload.concurrency) if", "planned = workload.concurrency if", (CANDIDATES,),
    ),
    Mutant(
        "what runs and what is cached are planned into the same slabs", PLANNER + "candidates.py",
        "rest = free - shape.slabs(load, slots, shaped.tokens)", "rest = free", (CANDIDATES,),
    ),
    Mutant(
        "slots are set aside for a cache that is off", PLANNER + "candidates.py",
        "shaped.tokens) if constraints.prefix_caching else 0", "shaped.tokens)", (CANDIDATES,),
    ),
    Mutant(
        "a sequence needs no padding beside it", PLANNER + "candidates.py",
        "needed = (1 + shape.slabs(1, slots, must_hold))", "needed = (shape.slabs(1, slots, must_hold))",
        (CANDIDATES,),
    ),
    Mutant(
        "a machine that was not told is taken whole", PLANNER + "candidates.py",
        "if not budget.arena_limited:", "if True:", (CANDIDATES,),
    ),
    Mutant(
        "a hair of speed wins over robustness", PLANNER + "choice.py",
        "(each.score >= best * (1 - TIE) and _has_room(each))", "False", (CHOICE,),
    ),
    Mutant(
        "who just fits wins a tie", PLANNER + "choice.py",
        "return each.fits > each.planned", "return True", (CHOICE,),
    ),
    Mutant(
        "the declared concurrency is not looked at", PLANNER + "choice.py",
        "pool = [each for each in pool if each.running >= wanted] or pool", "pool = list(pool)", (CHOICE,),
    ),
    Mutant(
        "the checkpoint's wish for exact states is not looked at", PLANNER + "choice.py",
        'if hint == "float32" and exact:', "if False:", (CHOICE,),
    ),
    Mutant(
        "exact states win although too few sequences fit", PLANNER + "choice.py",
        'each.state_dtype == "float32" and each.running >= wanted]', 'each.state_dtype == "float32"]',
        (CHOICE,),
    ),
    Mutant(
        "tracking slots are taken although nothing is cached", PLANNER + "choice.py",
        "list(MOST_ROBUST_FIRST) if constraints.prefix_caching else list(reversed(MOST_ROBUST_FIRST))",
        "list(MOST_ROBUST_FIRST)",
        (CHOICE,),
    ),
    Mutant(
        "checkpoints last without room for those that come back", PLANNER + "throughput.py",
        "lasting = paths / (paths + returning)", "lasting = min(1.0, paths / returning)", (THROUGHPUT,),
    ),
    Mutant(
        "who waits for a place does not come back", PLANNER + "throughput.py",
        "max(workload.concurrency or 0, running) - running", "running - running", (THROUGHPUT,),
    ),
    Mutant(
        "free slots keep what is new", PLANNER + "throughput.py",
        "lasting *= KEPT_WITHOUT_BUFFER", "pass", (THROUGHPUT,),
    ),
    Mutant(
        "an answer leaves a checkpoint where no strategy makes one", PLANNER + "throughput.py",
        "tail = float(workload.output_tokens)", "tail = 0.0", (THROUGHPUT,),
    ),
    Mutant(
        "a large batch reads few experts", PLANNER + "throughput.py",
        "1 - (1 - share) ** traffic.running", "share", (THROUGHPUT,),
    ),
    Mutant(
        "the convolution window is one token too long", PLANNER + "arithmetic.py",
        "LayerState((mamba.conv_kernel - 1) * channels", "LayerState(mamba.conv_kernel * channels",
        (ARITHMETIC,),
    ),
    Mutant(
        "values take no memory, only keys do", PLANNER + "arithmetic.py",
        "return 2 * model.attention_layers * heads", "return model.attention_layers * heads", (ARITHMETIC,),
    ),
    Mutant(
        "a slab is too small for its state", PLANNER + "arithmetic.py",
        "max(1, -(-state // unit)) * unit", "max(1, state // unit) * unit", (ARITHMETIC,),
    ),
    Mutant(
        "fewer groups than devices leave some without one", PLANNER + "arithmetic.py",
        "    return 1\n", "    return 0\n", (ARITHMETIC,),
    ),
    Mutant(
        "a device is used beyond its share", PLANNER + "memory.py",
        "share = int(device.memory * constraints.utilization)", "share = int(device.memory)", (MEMORY,),
    ),
    Mutant(
        "an answer may be as long as the context", PLANNER + "constraints.py",
        "min(self.output_tokens, max(longest - 1, 1))", "min(self.output_tokens, max(longest, 1))",
        (CONSTRAINTS,),
    ),
    Mutant(
        "long answers are tracked at no wider steps than asked for", SPACING,
        "return min(page_size << doublings, track_interval)", "return page_size << doublings", (PLACEMENT,),
    ),
    Mutant(
        "checkpoints grow rare four times too early", SPACING,
        "(outputs // (4 * page_size)).bit_length()", "(outputs // page_size).bit_length()", (PLACEMENT,),
    ),
)  # fmt: skip
