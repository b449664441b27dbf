"""Random rows, experts and choices, and what a mixture of them is, pair by pair in float64."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from mamba_kernels.moe import Activation, SharedExpert
from testmodels.chunks import poisoned

Operator = Callable[..., None]


@dataclass
class ExpertBatch:
    n: int
    E: int = 5
    k: int = 2
    d: int = 24
    f: int = 20
    activation: Activation = Activation.GATED_SILU
    dtype: torch.dtype = torch.float64
    shared_f: int = 0
    """Inner features of a shared expert, which is gated; 0 = there is none."""
    seed: int = 0
    hidden: torch.Tensor = field(init=False)
    experts: torch.Tensor = field(init=False)
    """Expert E - 1 is chosen by nobody if another choice is possible."""
    weights: torch.Tensor = field(init=False)
    gate_up: torch.Tensor = field(init=False)
    down: torch.Tensor = field(init=False)
    shared: SharedExpert | None = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)

        def rand(*shape: int) -> torch.Tensor:
            scale = shape[-1] ** -0.5
            return (torch.randn(*shape, generator=generator, dtype=torch.float64) * scale).to(self.dtype)

        inner = self.activation.projections * self.f
        self.hidden = rand(self.n, 1 + self.d)[:, 1:]
        self.gate_up, self.down = rand(self.E, inner, self.d), rand(self.E, self.d, self.f)
        scores = torch.rand(self.n, max(self.E - 1, self.k), generator=generator)
        top = scores.topk(self.k)
        counted = torch.float64 if self.dtype == torch.float64 else torch.float32
        self.experts, self.weights = top.indices.to(torch.int32), top.values.to(counted)
        self.shared = None
        if self.shared_f:
            wide = self.activation.projections * self.shared_f
            # The last column of a product.
            logits = torch.randn(self.n, 3, generator=generator).to(counted)
            self.shared = SharedExpert(rand(wide, self.d), rand(self.d, self.shared_f), logits[:, 2])

    def run(self, operator: Operator) -> torch.Tensor:
        out = poisoned(self.n, self.d + 3, dtype=self.dtype)[:, 2:-1]
        operator(
            self.hidden,
            self.experts,
            self.weights,
            self.gate_up,
            self.down,
            self.activation,
            out,
            self.shared,
        )
        return out

    def expected(self) -> torch.Tensor:
        total = torch.zeros(self.n, self.d, dtype=torch.float64)
        for row in range(self.n):
            for j in range(self.k):
                expert = int(self.experts[row, j])
                if expert >= 0:
                    made = self._expert(self.hidden[row], self.gate_up[expert], self.down[expert])
                    total[row] += self.weights[row, j].double() * made
            if self.shared is not None:
                made = self._expert(self.hidden[row], self.shared.gate_up, self.shared.down)
                logit = self.shared.logit
                total[row] += made if logit is None else logit[row].double().sigmoid() * made
        return total

    def _expert(self, x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        inner = gate_up.double() @ x.double()
        if self.activation is Activation.GATED_SILU:
            gate, up = inner.chunk(2)
            return down.double() @ (F.silu(gate) * up)
        return down.double() @ F.relu(inner).square()
