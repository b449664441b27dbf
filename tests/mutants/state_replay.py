"""Defects of rings: of what waits, what is folded, and when states are written."""

from seeded import Mutant

GATE = "tests/gates/test_state_replay.py"
KERNELS = "tests/unit/kernels/test_state_replay.py"

MUTANTS = (
    Mutant(
        name="what waits is forgotten when a state is written",
        keeps="A state that is written lacks nothing.",
        where="mamba_kernels.state_replay.repeated_steps:repeated_steps",
        old="range(int(waiting.max(initial=0)))",
        new="range(0)",
        tests=(KERNELS,),
    ),
    Mutant(
        name="a row that writes its state leaves its input in the ring, too",
        keeps="An input is folded once.",
        where="engine.scheduling.ring_rows:RingRows.launched",
        old="np.where(planned[2] > 0, 0, planned[1] + 1)",
        new="planned[1] + 1 - planned[2]",
        tests=(GATE,),
    ),
    Mutant(
        name="states are written at other depths than checkpoints are due",
        keeps="A checkpoint that is due is written in the pass that writes the state.",
        where="engine.scheduling.ring_rows:RingRows.plan",
        old="reached % self.tokens == 0",
        new="reached % self.tokens == 1",
        tests=(GATE,),
    ),
    Mutant(
        name="a row without a lane does not write its state",
        keeps="Sequences beyond the lanes decode plainly.",
        where="engine.scheduling.ring_rows:RingRows.plan",
        old="writes |= lane[rows] < 0",
        new="pass",
        tests=(GATE,),
    ),
    Mutant(
        name="the plan forgets the rings",
        keeps="The plan counts the memory of rings.",
        where="mamba_planner.workspace:ring_bytes",
        old="model.recurrent_layers * inputs * ring_inputs(model)",
        new="0 * inputs * ring_inputs(model)",
        tests=("tests/unit/engine/test_ring_memory.py",),
    ),
)
