"""Decode step of one number of rows: the same operators on the same memory, whatever the sequences are.

Therefore it can be captured once and repeated. Built and run on the forward stream alone.
"""

from collections.abc import Callable, Sequence

import torch

from mamba_kernels.sample import SampleParameters, TokenChoice
from mamba_kernels.sample.parameters import packed_size
from mamba_planner.workspace import LOGIT_ROWS
from mamba_server.engine.execution.sampler import Sampler
from mamba_server.engine.execution.sampling_batch import SamplingRow, write_parameters
from mamba_server.engine.execution.step_graphs import StepGraphs
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.decode_inputs import DecodeInputs
from mamba_server.model.forward_batch import HostBatch
from mamba_server.model.layers.hybrid import HybridModel
from mamba_server.model.staged_buffer import StagedBuffer


class DecodeStep:
    """Computes decode steps of at most `rows` rows on memory of its own, so that a graph can repeat them.

    `last_token` [R] int32 holds the last token of each persistent row, and gets the chosen ones.
    """

    def __init__(
        self,
        rows: int,
        model: HybridModel,
        cache: CacheViews,
        sampler: Sampler,
        page_table: torch.Tensor,
        last_token: torch.Tensor,
        page_size: int,
    ) -> None:
        self.rows = rows
        self._model, self._cache, self._sampler = model, cache, sampler
        self._last_token, self._page_size = last_token, page_size
        self._inputs = DecodeInputs(rows, len(last_token) - 1, page_table)
        self._plans = self._inputs.plans(
            recurrent=bool(cache.ssm), attention=bool(cache.kv), ring=bool(cache.rings)
        )
        zeros = torch.zeros(packed_size(rows), dtype=torch.int32)
        self._staged = StagedBuffer(zeros, page_table.device)
        self._parameters = SampleParameters.packed(self._staged.on_device, rows)
        self._chosen_for: list[int] = []
        """Serial numbers of the sequences whose parameters are on the device."""
        self._forward: Callable[[], torch.Tensor] = self._issue_forward
        self._choose: Callable[[], TokenChoice] = self._issue_choice
        self._hidden: torch.Tensor | None = None
        self._tables = sampler.tables
        """Address of the count tables that `_choose` uses."""

    def warm_up(self) -> None:
        """Compute a step of padding alone, which compiles all kernels. Raises NoHostRoutes."""
        with torch.inference_mode():
            self._set_parameters(())
            self._hidden = self._issue_forward()
            self._issue_choice()

    def capture(self, graphs: StepGraphs) -> None:
        """Capture the work of a step, and repeat the captured work from now on; called after `warm_up`.

        Raises as `graphs` does: the work is then issued as before, once `warm_up` has run again.
        """
        with torch.inference_mode():
            forward = graphs.capture(self._issue_forward)
            self._hidden = forward()
            choose = graphs.capture(self._issue_choice)
        self._forward, self._choose, self._tables = forward, choose, self._sampler.tables

    def forward(self, batch: HostBatch) -> torch.Tensor:
        """Decode `batch`, n <= `rows`; return normed hidden states [n, d], which the next step overwrites."""
        self._inputs.write(batch, self._page_size)
        self._hidden = self._forward()
        return self._hidden[: len(batch.context_len)]

    def choose(self, sampling: Sequence[SamplingRow]) -> TokenChoice:
        """Choose a token for each row of the last `forward`, write it to `last_token`, and return it.

        Both tensors of the result are [n], and the next step overwrites them. Parameters are sent when the
        rows change.
        """
        serials = [row.serial for row in sampling]
        if serials != self._chosen_for:
            self._set_parameters(sampling)
        if self._tables != self._sampler.tables:
            # The captured work counts in memory that has been freed.
            self._choose, self._tables = self._issue_choice, self._sampler.tables
        choice = self._choose()
        return TokenChoice(choice.ids[: len(sampling)], choice.finite[: len(sampling)])

    def _set_parameters(self, sampling: Sequence[SamplingRow]) -> None:
        memory = self._staged.next().zero_()
        host = SampleParameters.packed(memory, self.rows)
        # Rows of padding choose the most likely token and count it nowhere.
        host.counts_row.fill_(-1)
        write_parameters(sampling, self._sampler.vocab_size, host)
        self._staged.send()
        self._chosen_for = [row.serial for row in sampling]

    def _issue_forward(self) -> torch.Tensor:
        token_ids = self._last_token.index_select(0, self._inputs.table_row)
        return self._model.decode(token_ids, self._plans, self._cache)

    def _issue_choice(self) -> TokenChoice:
        """Issue product with the head and choice of tokens, in blocks of the rows that memory allows."""
        assert self._hidden is not None
        positions = self._inputs.context_len
        parts = []
        for first in range(0, self.rows, LOGIT_ROWS):
            block = slice(first, min(first + LOGIT_ROWS, self.rows))
            logits = self._model.logits(self._hidden[block])
            parts.append(self._sampler.choose(logits, self._parameters.of_rows(block), positions[block]))
            # The next block uses the same memory.
            del logits
        ids = parts[0].ids if len(parts) == 1 else torch.cat([part.ids for part in parts])
        finite = parts[0].finite if len(parts) == 1 else torch.cat([part.finite for part in parts])
        ids = ids.to(torch.int32)
        # All rows of padding write to the spare row.
        self._last_token.index_copy_(0, self._inputs.table_row.long(), ids)
        return TokenChoice(ids, finite)
