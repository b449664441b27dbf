"""Boot of a second model that drafts: resolve, compare, count, load, allocate, connect.

`boot` calls it in that order, beside the same steps of the model. A draft model that cannot be used ends the
start with a message that names it; one that fails later ends drafts, not answers.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from mamba_planner.constraints import Constraints
from mamba_planner.draft_models import STATE_DTYPE, DraftModelMemory, draft_model_memory
from mamba_planner.families.registry import load_model_config, why_not_served
from mamba_planner.memory import MOST_RUNNING
from mamba_planner.model_config import DraftModel, ModelConfig
from mamba_planner.workspace import CHUNK
from mamba_server.cache import ManagedStateCache, Tokens
from mamba_server.engine.execution.draft_runner import DraftRunner
from mamba_server.engine.execution.runner import ModelRunner
from mamba_server.engine.scheduling.draft_rows import room_for_drafts
from mamba_server.engine.speculation.draft_lanes import DraftLanes
from mamba_server.engine.speculation.model_drafts import DraftPiece, ModelDrafts
from mamba_server.engine.stepping.forward_stream import ForwardStream
from mamba_server.engine.stepping.speculation import DraftSwitch
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.model.checkpoint.source import Progress, resolve
from mamba_server.model.checkpoint.vocabulary import check_same_vocabulary
from mamba_server.model.checkpoint.weight_files import weights_size
from mamba_server.model.checkpoint.weights import Weights
from mamba_server.model.device_arena import DTYPES, draft_model_views
from mamba_server.model.layers.hybrid import HybridModel
from mamba_settings.engine_settings import EngineSettings


@dataclass(frozen=True, slots=True)
class DraftModelSource:
    """A draft model whose files are here and whose tokens fit the served model, before it is loaded."""

    directory: Path
    facts: DraftModel

    def load(
        self, model: ModelConfig, settings: EngineSettings, device: torch.device, report: Progress
    ) -> "LoadedDraftModel":
        """Read the weights. Raises UnsupportedModel, WeightsError."""
        kind, constraints = device_kind(device), Constraints.of(settings)
        running = settings.max_running_requests or MOST_RUNNING[kind]
        memory = draft_model_memory(model, self.facts, constraints, kind, running)
        weights = HybridModel(
            self.facts.config,
            Weights(self.directory, report),
            device=device,
            dtype=DTYPES[memory.dtype],
            quantization=settings.quantization,
        )
        return LoadedDraftModel(weights, memory, settings.page_size, device)


def draft_model_source(
    settings: EngineSettings, model: Path, device: torch.device, report: Progress
) -> DraftModelSource | None:
    """Return the draft model that the settings name, downloaded if necessary; None = they name none.

    Raises SourceError, UnsupportedModel, ModelConfigError.
    """
    if (uri := settings.draft_model) is None:
        return None
    directory = resolve(uri, report)
    config = load_model_config(directory)
    if (why := why_not_served(config)) is not None:
        raise UnsupportedModel(f"draft model {uri}: {why}")
    check_same_vocabulary(model, directory, uri)
    dtype = config.dtype if settings.dtype == "auto" else settings.dtype
    size, on_cpu = weights_size(directory), device.type == "cpu"
    weights = None if size is None else size.loaded(config, dtype, settings.quantization, on_cpu=on_cpu)
    return DraftModelSource(directory, DraftModel(uri, config, weights))


@dataclass(frozen=True, slots=True)
class LoadedDraftModel:
    """A draft model whose weights are in memory, but not yet its states and pages."""

    model: HybridModel
    memory: DraftModelMemory
    page_size: int
    device: torch.device

    def drafts(self, most: int) -> ModelDrafts:
        """Return a source of drafts that this model writes, at most `most` behind a token."""
        memory = self.memory
        lanes = DraftLanes(
            memory.lanes, pages=memory.pages, page_size=self.page_size, table_width=memory.table_width
        )
        return ModelDrafts(
            most,
            lanes,
            longest=memory.longest,
            vocabulary=self.model.config.vocab_size,
            budget=memory.catch_up_tokens,
            chunk=CHUNK[device_kind(self.device)],
        )

    def follow(
        self,
        drafts: DraftSwitch | None,
        cache: ManagedStateCache,
        runner: ModelRunner,
        stream: ForwardStream,
        vocabulary: int,
    ) -> DraftRunner | None:
        """Allocate states and pages, and let the source of drafts compute on the forward stream.

        Return None if `drafts` does not draft with a second model. `vocabulary` is the number of token ids of
        the served model.
        """
        if drafts is None or not isinstance(source := drafts.source, ModelDrafts):
            return None
        memory = self.memory
        views = draft_model_views(
            self.model.config,
            states=memory.states,
            pages=memory.pages,
            page_size=self.page_size,
            state_dtype=STATE_DTYPE,
            dtype=DTYPES[memory.dtype],
            device=self.device,
        )
        follower = DraftRunner(
            self.model,
            views,
            source.lanes,
            runner.sampling,
            table_width=memory.table_width,
            page_size=self.page_size,
            chunk=CHUNK[device_kind(self.device)],
            catch_up_tokens=memory.catch_up_tokens,
            vocabulary=vocabulary,
            device=self.device,
        )

        def compute(pieces: list[DraftPiece]) -> list[Tokens]:
            return stream.wait(stream.launch(follower.prepare(pieces)))()

        source.room, source.compute = partial(room_for_drafts, cache), compute
        source.give_up = drafts.switch_off
        return follower


def device_kind(device: torch.device) -> Literal["cpu", "cuda"]:
    return "cuda" if device.type == "cuda" else "cpu"
