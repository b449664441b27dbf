"""`AdapterBank`: the places for adapters on the device, which are all reserved at the start.

The loader takes the memory of each projection from it while the model is built. Later the engine puts
adapters into places and the runner sets the adapters of each step, both on the forward stream.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace

import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import PackedLinear
from mamba_kernels.cpu.row_operations import AdapterRows
from mamba_server.model.adapters.adapted_experts import AdaptedExperts, ExpertNames, ExpertProducts, Group
from mamba_server.model.adapters.adapted_heads import HeadChanges
from mamba_server.model.adapters.adapted_product import AdaptedProduct, Part, Rows
from mamba_server.model.adapters.adapter_files import AdapterWeights, LowRank
from mamba_server.model.adapters.step_adapters import BASE, StepAdapters
from mamba_server.model.checkpoint.errors import AdapterError

_EXPERTS = re.compile(
    r"\.(experts|shared_experts?|shared_mlp|block_sparse_moe|router|gate|expert_bias|fc[12]_latent_proj)(\.|$)"
)
"""Part of the names of modules of sparse feed-forwards."""


class AdapterBank:
    """Keeps up to `places` adapters of up to `rank` on the device, each in a place of its own."""

    def __init__(
        self, places: int, rank: int, device: torch.device, dtype: torch.dtype, *, expert_rank: int = 0
    ) -> None:
        """Create a bank with room for `places` adapters of at most `rank`. No memory is reserved yet.

        `dtype` is the type of the model's activations, in which the adapters are kept. `expert_rank` is the
        largest rank of the changes of experts; 0 = no adapter may change experts.
        """
        self.places, self.rank, self.expert_rank = places, rank, expert_rank
        self._device, self._dtype = device, dtype
        self._products: dict[str, list[tuple[AdaptedProduct | HeadChanges, Part]]] = {}
        self._all: list[AdaptedProduct | HeadChanges] = []
        self._other_prefixes: dict[str, str] = {}
        """Prefixes of modules' names by prefixes that adapters may have instead."""
        self._uses: list[list[str]] = []
        """Prefixes of the uses of each part of the model that several layers share."""
        self._experts: list[AdaptedExperts] = []
        self._of_experts: set[str] = set()
        """Names of modules and stacked parameters of experts that have places."""
        self.nbytes = 0
        """Bytes of the reserved memory."""
        self._place_of: dict[str, int] = {}
        self.step: StepAdapters | None = None
        """Adapters of the step that is being computed; None = no row has one."""

    def adapt(
        self,
        base: Rows,
        linear: Rows,
        activation: str,
        inputs: int,
        parts: tuple[Part, ...],
        library: Library | None = None,
    ) -> AdaptedProduct:
        """Return the product with places for changes, as `AdaptedProduct` describes it.

        `library`: the C++ kernels, if they compute `base` and `linear`; otherwise None.
        """
        first = self._zeros(self.places, len(parts), self.rank, inputs)
        seconds = [self._zeros(self.places, self.rank, part.width) for part in parts]
        kernel = None
        if library is not None and isinstance(base, PackedLinear) and isinstance(linear, PackedLinear):
            kernel = AdapterRows(library, base, linear, first, seconds, [part.start for part in parts])
        product = AdaptedProduct(base, linear, activation, parts, self, first, seconds, kernel)
        self._add(product, parts)
        return product

    def adapt_heads(self, part: Part, heads: int, inputs: int) -> HeadChanges:
        """Reserve memory for changes of a projection of `inputs` to all heads, which `AdaptedHeads` reads."""
        first = self._zeros(self.places, self.rank, inputs)
        second = self._zeros(self.places, heads, self.rank, part.outputs // heads)
        changes = HeadChanges(part, heads, first, second)
        self._add(changes, (part,))
        return changes

    def _add(self, product: AdaptedProduct | HeadChanges, parts: tuple[Part, ...]) -> None:
        self._all.append(product)
        for part in parts:
            self._products.setdefault(part.module, []).append((product, part))

    def also_call(self, prefix: str, other: str) -> None:
        """Accept adapters whose names of modules begin with `other` where the model's begin with `prefix`."""
        self._other_prefixes[other] = prefix

    def share(self, prefixes: list[str]) -> None:
        """Refuse adapters that change one use of shared weights, but not the other uses.

        `prefixes` are those of the names of all uses.
        """
        self._uses.append(prefixes)

    def adapt_experts(
        self,
        names: ExpertNames,
        routed: ExpertProducts,
        shared: tuple[ExpertProducts, tuple[str, ...], str] | None,
    ) -> AdaptedExperts:
        """Reserve memory for adapters of the experts of one block; return an object that computes changes.

        `shared` is the shared expert, with the names of its first projections and of its last; None = the
        block has none, or computes it apart from the others.
        """

        def group(products: ExpertProducts) -> Group:
            return Group(products, self._zeros, (self.places, self.expert_rank))

        own = None if shared is None else (group(shared[0]), shared[1], shared[2])
        experts = AdaptedExperts(group(routed), names, self, own)
        self._experts.append(experts)
        self._of_experts.update(experts.modules)
        return experts

    @property
    def changes_experts(self) -> bool:
        """Whether an adapter of the step that is being computed changes experts."""
        return any(experts.changes_step() for experts in self._experts)

    def _zeros(self, *shape: int) -> torch.Tensor:
        tensor = torch.zeros(shape, dtype=self._dtype, device=self._device)
        self.nbytes += tensor.nbytes
        return tensor

    def fitted(self, adapter: AdapterWeights) -> AdapterWeights:
        """Return the adapter with the names that modules have here.

        Raises AdapterError if it does not fit the model or its places.
        """
        written = {self._own_name(name): name for name in (*adapter.modules, *adapter.stacked)}
        adapter = replace(
            adapter,
            modules={self._own_name(name): each for name, each in adapter.modules.items()},
            stacked={self._own_name(name): each for name, each in adapter.stacked.items()},
        )
        plain = {name: change for name, change in adapter.modules.items() if name not in self._of_experts}
        rank = max((len(change.first) for change in plain.values()), default=0)
        if rank > self.rank:
            raise AdapterError(
                f"the adapter has rank {rank}, and the places are for ranks up to {self.rank}: start with "
                f"--max-lora-rank {rank}"
            )
        for name, stacked in adapter.stacked.items():
            if name not in self._of_experts:
                raise self._not_adapted(written[name], stacked.rank)
        for experts in self._experts:
            experts.check(adapter, self.expert_rank)
        for module, change in plain.items():
            if (products := self._products.get(module)) is None:
                raise self._not_adapted(written[module], len(change.first))
            for product, part in products:
                product.check(part, change)
        self._check_uses(plain)
        return adapter

    def _own_name(self, name: str) -> str:
        """Return the name that a module of an adapter has here."""
        other = next((each for each in self._other_prefixes if name.startswith(each)), "")
        return self._other_prefixes[other] + name.removeprefix(other) if other else name

    def _check_uses(self, changes: dict[str, LowRank]) -> None:
        """Raise AdapterError if an adapter changes some uses of shared weights and not all of them."""
        for uses in self._uses:
            for module in changes:
                prefix = next((each for each in uses if module.startswith(each)), None)
                if prefix is None:
                    continue
                alike = [each + module.removeprefix(prefix) for each in uses]
                without = [each for each in alike if each in self._products and each not in changes]
                if without:
                    raise AdapterError(
                        f"the adapter changes {module}, and not {without[0]}, which has the same "
                        "weights: its files do not say whether it was trained for both; train it with a "
                        "version of transformers that names each use, or merge the adapter into the model"
                    )

    def holds(self, fingerprint: str) -> bool:
        """Return whether the adapter with this fingerprint has a place; "" = no adapter, which needs none."""
        return not fingerprint or fingerprint in self._place_of

    def place_of(self, fingerprint: str) -> int:
        """Return the place of the adapter with this fingerprint, or `BASE` for "".

        Raises KeyError for an adapter without a place.
        """
        return self._place_of[fingerprint] if fingerprint else BASE

    @property
    def fingerprints(self) -> list[str]:
        """Fingerprints of the adapters that have places."""
        return [*self._place_of]

    def reserve(self, fingerprint: str) -> int | None:
        """Give an adapter a place, unless it has one, and return its place; None = all are taken.

        The caller installs the adapter before any step names it.
        """
        if fingerprint not in self._place_of:
            free = set(range(self.places)) - set(self._place_of.values())
            if not free:
                return None
            self._place_of[fingerprint] = min(free)
        return self._place_of[fingerprint]

    def remove(self, fingerprint: str) -> bool:
        """Take the place of an adapter back, which no step to come may name; return whether it had one."""
        return self._place_of.pop(fingerprint, None) is not None

    def install(self, place: int, adapter: AdapterWeights) -> None:
        """Copy a `fitted` adapter into `place`. Called on the forward stream, or before there is one."""
        with torch.inference_mode():
            for product in self._all:
                product.install(place, adapter.modules)
            for experts in self._experts:
                experts.install(place, adapter)

    @contextlib.contextmanager
    def computing(self, step: StepAdapters | None) -> Iterator[None]:
        """Compute with these adapters while the context is open. Called on the forward stream."""
        self.step = step
        try:
            yield
        finally:
            self.step = None

    def _not_adapted(self, module: str, rank: int) -> AdapterError:
        """Return the error for a module that has no place for changes."""
        if _EXPERTS.search(module) and not self.expert_rank:
            return AdapterError(
                f"the adapter changes {module}, and this engine has no places for changes of experts: start "
                f"with --max-lora-expert-rank {rank}, or merge the adapter into the model"
            )
        if _EXPERTS.search(module):
            return AdapterError(
                f"the adapter changes {module}: of sparse feed-forwards, experts are served with adapters; "
                "routers, projections to a latent width and what stands between them are not: merge the "
                "adapter into the model"
            )
        return AdapterError(
            f"the adapter changes {module}, which is no projection of this model's attention, feed-forward "
            "or recurrent mixers: other modules have no adapters; merge the adapter into the model"
        )
