"""Defects of the planner."""

from seeded import Mutant

MUTANTS = (
    Mutant(
        name="a plan for another size ignores the memory in use",
        keeps="Memory that others use is subtracted for each size of GPU.",
        where="mamba_planner.memory:Device.resized",
        old="max(memory - (self.memory - self.free), 0)",
        new="memory",
        tests=("tests/unit/planner/test_other_sizes.py",),
    ),
    Mutant(
        name="a strategy in the spec is a suggestion",
        keeps="What the user sets explicitly is planned or refused.",
        where="mamba_planner.planner:_allowed",
        old="constraints.strategy in (None, candidate.strategy)",
        new="True",
        tests=("tests/unit/planner/test_planner.py",),
    ),
    Mutant(
        name="a declared concurrency is planned although it does not fit",
        keeps="A plan never promises more sequences than its memory holds.",
        where="mamba_planner.candidates:evaluate",
        old="min(running, workload.concurrency)",
        new="workload.concurrency",
        tests=("tests/unit/planner/test_candidates.py",),
    ),
    Mutant(
        name="running sequences and the cache are planned into the same slabs",
        keeps="The parts of a plan add up to its memory.",
        where="mamba_planner.candidates:evaluate.operating_point",
        old="free - shape.slabs(load, slots, traffic.tokens)",
        new="free",
        tests=("tests/unit/planner/test_candidates.py",),
    ),
    Mutant(
        name="an engine on a CPU takes the whole machine",
        keeps="Without a limit only a share of the host's memory is planned.",
        where="mamba_planner.candidates:_arena_slabs",
        old="not budget.arena_limited",
        new="True",
        tests=("tests/unit/planner/test_candidates.py",),
    ),
    Mutant(
        name="the convolution's state is one token too long",
        keeps="The size of a state is that which the engine allocates.",
        where="mamba_planner.arithmetic:layer_state",
        old="LayerState((mamba.conv_kernel - 1) * channels, heads * mamba.head_dim * mamba.state_size)",
        new="LayerState(mamba.conv_kernel * channels, heads * mamba.head_dim * mamba.state_size)",
        tests=("tests/unit/planner/test_arithmetic.py",),
    ),
    Mutant(
        name="values of attention take no memory in the plan",
        keeps="Keys and values both count in the bytes of a page.",
        where="mamba_planner.arithmetic:kv_bytes_per_token",
        old="2 * model.attention_layers",
        new="model.attention_layers",
        tests=("tests/unit/planner/test_arithmetic.py",),
    ),
    Mutant(
        name="a plan uses a device beyond its share",
        keeps="gpuMemoryUtilization bounds the whole plan.",
        where="mamba_planner.memory:MemoryBudget.of",
        old="memory * constraints.utilization",
        new="memory",
        tests=("tests/unit/planner/test_memory.py",),
    ),
)
