"""Defects of rings: of what waits, what is folded, and when states are written."""

from seeded import Mutant

GATE = "tests/gates/test_state_replay.py"
KERNELS = "tests/unit/kernels/test_state_replay.py"
CPP = "tests/unit/kernels/cpu/test_state_ring.py"
STEPS = "tests/unit/kernels/cpu/test_step_decoder.py"

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
        name="the C++ kernels write a state that lacks inputs, and leave one that is due",
        keeps="A state is written by the tokens that the plan names.",
        where="mamba_kernels.cpu.mixer:name_lanes",
        old="first, first + stride, first + 2 * stride",
        new="first, first + stride, first + stride",
        tests=(CPP,),
    ),
    Mutant(
        name="layers that are called one by one forget what waits",
        keeps="A step folds what waits whether it is one call or several.",
        where="model.layers.mamba2:Mamba2Mixer.__call__",
        old="plans.decode is not None and plans.ring is not None",
        new="False",
        tests=(GATE,),
    ),
    Mutant(
        name="a step in one call forgets what waits",
        keeps="A step folds what waits whether it is one call or several.",
        where="mamba_kernels.cpu.whole_steps.step_decoder:StepDecoder.__call__",
        old="step.has_ring = decodes.ring is not None",
        new="step.has_ring = False",
        tests=(STEPS,),
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
