"""Defects of the kernels and their dispatch."""

from seeded import Mutant

MUTANTS = (
    Mutant(
        name="the window that a convolution leaves behind is one token late",
        keeps="A prefill leaves the state from which a decode goes on exactly.",
        where="conv1d_prefill.reference:convolve_pieces",
        old="inputs[rows:rows + K - 1]",
        new="inputs[max(0, rows - 1):max(0, rows - 1) + K - 1]",
        tests=("tests/unit/kernels/test_conv1d.py",),
    ),
    Mutant(
        name="the norm and the gate of a delta rule change places",
        keeps="The order of norm and gate is that of the checkpoint's family.",
        where="gated_norm.reference:gated_norm",
        old="y.to(kind).unflatten(-1, (groups, -1)) if norm_first else parts",
        new="y.to(kind).unflatten(-1, (groups, -1)) if norm_first and groups == 1 else parts",
        tests=("tests/unit/kernels/test_norms.py",),
    ),
    Mutant(
        name="the last of several experts with equal scores is chosen",
        keeps="Ties are broken as in the reference on each backend, so that backends agree.",
        where="moe.routing:route",
        old="choice.sort(dim=-1, descending=True, stable=True)",
        new="choice.shape[-1] - 1 - choice.flip(-1).sort(dim=-1, descending=True, stable=True)",
        tests=("tests/unit/kernels/test_moe.py",),
    ),
    Mutant(
        name="a kernel is replaced for good after one failure while serving",
        keeps="Only the trial at the start replaces a kernel; a later failure is an error of its step.",
        where="dispatch.kernel_or_reference:KernelOrReference._give_up",
        old="self.on_trial",
        new="True",
        tests=("tests/unit/kernels/test_backend.py",),
    ),
    Mutant(
        name="attention runs with a plan that has no keys",
        keeps="A plan that covers no work for tokens is refused.",
        where="paged_attention.reference:paged_attention",
        old="plan.tokens and (not (plan.groups or plan.pieces))",
        new="False",
        tests=("tests/unit/kernels/test_paged_attention.py",),
    ),
    Mutant(
        name="a lost device is not recognised when Triton reports it",
        keeps="Every way in which a lost device is reported ends the engine.",
        where="mamba_kernels.device_errors:_REPORT",
        old="re.compile('CUDA (?:driver )?error: |Triton Error \\\\[CUDA\\\\]: |cuDNN error: ')",
        new="re.compile('CUDA (?:driver )?error: |cuDNN error: ')",
        tests=("tests/unit/engine/test_core.py",),
    ),
    Mutant(
        name="experts of a latent width have no shared expert",
        keeps="A shared expert reads the rows of the block, and its result joins that of the experts.",
        where="mamba_server.model.layers.latent_projections:LatentProjections.leave",
        old="result.add_(self.shared(x))",
        new="result",
        tests=("tests/unit/model/test_step_decoder.py", "tests/unit/model/test_parity.py"),
    ),
    Mutant(
        name="decode steps leave the shared expert beside latent ones out",
        keeps="A decode step computes what the layers compute.",
        where="mamba_server.model.layers.step_decoder:_latent",
        old="(_packed_linear(own.up_proj), _packed_linear(own.down_proj))",
        new="None",
        tests=("tests/unit/model/test_step_decoder.py",),
    ),
)
