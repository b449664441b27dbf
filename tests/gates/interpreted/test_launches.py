"""Decode steps of as many rows issue the same operators and kernels in one order, whatever their sequences.

Of the conditions of a CUDA graph this is one, and the table of pages, which stays where it is, another; the
addresses of the other inputs still follow the step.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engines import greedy, make_engine, run
from mamba_kernels.paged_attention import triton as paged_attention
from mamba_kernels.triton_support import KernelCall
from mamba_server.engine.sampler import Sampler
from mamba_server.model.forward_batch import ForwardBatch
from mamba_server.model.layers.attention import Attention
from mamba_server.model.layers.hybrid import HybridModel
from mamba_server.model.layers.mamba2 import Mamba2Mixer
from mamba_server.wire import AddRequest, SamplingParams

Issued = tuple[str, tuple[int, ...], tuple[tuple[str, str], ...]]
"""Kernel, grid, compile-time constants; or operator and the shape of its result."""
RECURRENT, ATTENTION, SAMPLING = 8, 6, 12
"""Most that may be issued by one layer in a step, and launched by one call of the sampler."""
_FREE = ("empty", "new_empty", "empty_like", "split", "detach", "alias", "unsafe_split")
"""Operators that start nothing on a device, beside views."""


class Recorder(TorchDispatchMode):
    """What passes of the model issue, layer by layer, and what calls of the sampler launch."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.decodes: list[tuple[int, int, list[Issued]]] = []
        """Rows, longest context, what a step without pieces issued."""
        self.layers: list[tuple[type, int, int]] = []
        """Kind of layer, rows and number of what was issued, in steps without pieces."""
        self.samplings: list[list[Issued]] = []
        self.tables: set[tuple[int, tuple[int, ...]]] = set()
        """Address and shape of each table of pages that a kernel was given."""
        self._seen: list[Issued] = []
        self._launching = False
        self._decoding = 0
        start, hidden, sample = KernelCall.run, HybridModel.hidden, Sampler.sample

        def run_call(call: KernelCall) -> None:
            constants = tuple(sorted((name, str(value)) for name, value in call.constants.items()))
            self._seen.append((call.kernel.__name__, call.grid, constants))
            if (table := call.arguments.get("page_table")) is not None:
                self.tables.add((table.data_ptr(), tuple(table.shape)))
            self._launching = True  # The interpreter itself computes with torch.
            start(call)
            self._launching = False

        def run_hidden(model: HybridModel, batch: ForwardBatch, *rest: Any, **named: Any) -> Any:
            self._decoding = batch.decodes if batch.decodes == batch.sequences else 0
            self._seen = []
            with self:
                out = hidden(model, batch, *rest, **named)
            if self._decoding:
                self.decodes.append((batch.decodes, batch.max_context, self._seen))
            return out

        def run_sample(sampler: Sampler, *rest: Any, **named: Any) -> Any:
            self._seen = []
            out = sample(sampler, *rest, **named)
            self.samplings.append(self._seen)
            return out

        patch.setattr(KernelCall, "run", run_call)
        patch.setattr(HybridModel, "hidden", run_hidden)
        patch.setattr(Sampler, "sample", run_sample)
        for kind in (Mamba2Mixer, Attention):
            patch.setattr(kind, "__call__", self._counted(kind, kind.__call__))

    def _counted(self, kind: type, call: Any) -> Any:
        def counted(layer: Any, *rest: Any) -> Any:
            before = len(self._seen)
            out = call(layer, *rest)
            if self._decoding:
                self.layers.append((kind, self._decoding, len(self._seen) - before))
            return out

        return counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.")
        if not self._launching and not func.is_view and name.split(".")[0] not in _FREE:
            self._seen.append((name, tuple(out.shape) if isinstance(out, torch.Tensor) else (), ()))
        return out


def test_launches_follow_from_the_number_of_rows_alone(
    tiny_recall: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_attention, "PROGRAMS", 4)
    engine = make_engine(tiny_recall, prefix_caching=False)
    assert engine.kernels.name == "triton"
    drawn = SamplingParams(max_tokens=4, temperature=1.0, seed=7, top_k=40, top_p=0.9, presence_penalty=0.5)
    recorder = Recorder(monkeypatch)
    run(engine, [greedy("a", [7] * 5, 4), greedy("b", [9] * 3, 4)])
    run(engine, [greedy("c", [8] * 70, 4), AddRequest("d", [6] * 9, drawn)])
    run(engine, [greedy("e", [7] * 5, 3)])

    pairs = [launched for rows, _, launched in recorder.decodes if rows == 2]
    contexts = {context for rows, context, _ in recorder.decodes if rows == 2}
    assert len(pairs) >= 4
    assert min(contexts) < 16
    assert max(contexts) > 64
    assert pairs[0]
    assert all(launched == pairs[0] for launched in pairs)
    assert len(recorder.tables) == 1, "one table of pages for all steps"
    by_rows = {
        rows: [(kind, number) for kind, of, number in recorder.layers if of == rows] for rows in (1, 2)
    }
    assert set(by_rows[1]) == set(by_rows[2]), "what a layer issues follows the number of rows"
    most = {
        kind: max(number for of, _, number in recorder.layers if of is kind)
        for kind in (Mamba2Mixer, Attention)
    }
    assert 0 < most[Mamba2Mixer] <= RECURRENT
    assert 0 < most[Attention] <= ATTENTION
    assert recorder.samplings
    assert all(0 < len(each) <= SAMPLING for each in recorder.samplings)
