"""Whole steps of a whole model: decodes of many sizes, captured and issued, and prompts."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from benchmarks.gpu.captured_step import decode_step, sampling_rows
from benchmarks.gpu.case import Absent, Case, Job, Numbers
from benchmarks.gpu.device_facts import facts
from benchmarks.gpu.forecasts import beside
from benchmarks.gpu.kernel_profile import top_kernels
from benchmarks.gpu.models import NANO, SMALLER, published, shortened
from benchmarks.gpu.random_weights import RandomWeights
from benchmarks.gpu.stages.kernels import decodes, prompts
from benchmarks.gpu.step_inputs import StepArena, StepShape
from benchmarks.gpu.timing import host_seconds

from mamba_kernels.slot_plan import NoHostRoutes
from mamba_planner.arithmetic import count_parameters, kv_bytes_per_token, state_bytes
from mamba_planner.model_config import ModelConfig
from mamba_server.model.layers.hybrid import HybridModel

__all__ = ["cases", "facts"]
CONTEXT = 1024
CASE_SECONDS = 40.0
WEIGHTS_SHARE = 0.4
"""Share of the card's memory that weights may take: the arena for 256 states needs about as much."""


@dataclass(frozen=True, slots=True)
class Decode:
    """A decode step to measure."""

    rows: int
    tracked: int = 0
    """Every so many-th row leaves a checkpoint; 0 = none does."""
    state_dtype: str = "float32"
    ring: int = 0
    """Tokens after which a state is written; 0 = each step writes all."""

    @property
    def words(self) -> str:
        """Return the name of the case."""
        tracked = {0: "", 1: ", all tracked"}.get(self.tracked, f", 1 in {self.tracked} tracked")
        ring = f", written once in {self.ring}" if self.ring else ""
        return f"decode, {self.rows} rows{tracked}, states in {self.state_dtype}{ring}"


DECODES = (
    *(Decode(rows) for rows in (64, 1, 256, 32, 8, 128)),
    *(Decode(rows, ring=tokens) for rows, tokens in ((128, 8), (256, 8), (64, 8), (32, 8), (128, 4))),
    Decode(64, tracked=1), Decode(256, tracked=256),
    *(Decode(rows, state_dtype="float16") for rows in (256, 64, 1)),
)  # fmt: skip
PROMPTS = (
    (1, 2048, 0),
    (1, 64, 0),
    (1, 512, 0),
    (8, 64, 0),
    (8, 512, 0),
    (8, 2048, 0),
    (1, 2048, 256),
    (8, 2048, 256),
)
"""(sequences, tokens of each, tokens between checkpoints or 0)"""


def cases(job: Job) -> Iterator[Case]:
    """Yield decodes (issued, captured), then prompts, then profiles of one of each."""
    device = torch.device(job.device)
    measured = WholeModel(device, small=job.small)
    decode_kinds = (
        (Decode(2, tracked=2), Decode(2, ring=2), Decode(2, state_dtype="float16")) if job.small else DECODES
    )
    for state_dtype in ("float32", "float16"):
        some = [decode for decode in decode_kinds if decode.state_dtype == state_dtype]
        context = 20 if job.small else CONTEXT
        pieces = [(2, 33, 0)] if job.small else PROMPTS
        shapes = [decodes(decode.rows, context, decode.tracked, decode.ring) for decode in some]
        if state_dtype == "float32":
            shapes += [prompts(count, tokens, track_every=every) for count, tokens, every in pieces]
        for decode, shape in zip(some, shapes, strict=False):
            for captured in (True, False):
                name = f"{decode.words}, {'captured' if captured else 'issued'}"
                run = partial(measured.decode, name, decode, shape, shapes, captured=captured)
                yield Case(name, run, CASE_SECONDS)
        if state_dtype == "float32":
            for (count, tokens, every), shape in zip(pieces, shapes[len(some) :], strict=True):
                name = f"prompt, {count} x {tokens}" + (f", checkpoints every {every}" if every else "")
                yield Case(name, partial(measured.prompt, name, shape, shapes), CASE_SECONDS)
            if not job.small:
                yield Case(
                    "profile of 64 decodes", partial(measured.profile, shapes[0], shapes), CASE_SECONDS
                )
                yield Case(
                    "profile of 2048 tokens",
                    partial(measured.profile, shapes[len(some)], shapes),
                    CASE_SECONDS,
                )


class WholeModel:
    """A model of all its layers with random weights, built at the first case; and an arena for its steps."""

    def __init__(self, device: torch.device, *, small: bool) -> None:
        self._device, self._small = device, small
        self._model: HybridModel | None = None
        self._arena: StepArena | None = None
        self._state_dtype = ""

    def decode(
        self, name: str, decode: Decode, shape: StepShape, shapes: list[StepShape], *, captured: bool
    ) -> Numbers:
        """Measure a decode step, its choice of tokens included."""
        model, arena = self._built(decode.state_dtype, shapes)
        if captured and self._device.type != "cuda":
            raise Absent("no graphs without a card")
        host, pages = arena.host_batch(shape)
        step, sampler = decode_step(
            model, arena, torch.from_numpy(pages).to(self._device), decode.rows, shape
        )
        sampling = sampling_rows(sampler, decode.rows)
        with torch.inference_mode(), self._stream() as stream:
            try:
                step.warm_up()
            except NoHostRoutes as why:
                raise Absent(str(why)) from why
            if captured:
                from mamba_server.engine.execution.cuda_graphs import CudaGraphs

                step.capture(CudaGraphs(stream, 0))

            def run() -> None:
                step.forward(host)
                step.choose(sampling)

            on_device, on_host = host_seconds(run, self._device)
        moved = self._bytes(model.config, decode)
        return {
            "model": self._words(model.config),
            "seconds": on_device,
            "host_seconds": on_host,
            "least_bytes": moved,
            "bytes_per_second": moved / on_device,
            "tokens_per_second": decode.rows / on_device,
            "headline": {f"{name}, ms": round(1e3 * on_device, 3)},
            **beside(name, on_device),
        }

    def prompt(self, name: str, shape: StepShape, shapes: list[StepShape]) -> Numbers:
        """Measure a step of prompts, its integers and the head included."""
        model, arena = self._built("float32", shapes)
        batch = arena.batch(shape, model.config.vocab_size)
        with torch.inference_mode(), self._stream():
            run = partial(model.forward, batch, arena.views)
            run()
            on_device, on_host = host_seconds(run, self._device)
        return {
            "model": self._words(model.config), "seconds": on_device, "host_seconds": on_host,
            "tokens_per_second": shape.tokens / on_device,
            "headline": {f"{name}, ms": round(1e3 * on_device, 3)}, **beside(name, on_device),
        }  # fmt: skip

    def profile(self, shape: StepShape, shapes: list[StepShape]) -> Numbers:
        """Return what the device does in a step that is issued: kernels by time, and how many launches."""
        if self._device.type != "cuda":
            raise Absent("no card to profile")
        model, arena = self._built("float32", shapes)
        batch = arena.batch(shape, model.config.vocab_size)
        with torch.inference_mode(), self._stream():
            return top_kernels(partial(model.forward, batch, arena.views))

    def _built(self, state_dtype: str, shapes: list[StepShape]) -> tuple[HybridModel, StepArena]:
        if self._model is None:
            self._model = self._weights()
        if self._arena is None or self._state_dtype != state_dtype:
            self._arena = None
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            self._arena = StepArena(
                self._model.config, shapes, dtype="bfloat16", state_dtype=state_dtype, device=self._device
            )
            self._state_dtype = state_dtype
        return self._model, self._arena

    def _weights(self) -> HybridModel:
        """Return the largest of the models that the card holds."""
        whole = published(NANO, small=self._small)
        candidates = [shortened(whole, 1)] if self._small else [whole, _half(whole), published(SMALLER)]
        if self._device.type == "cuda":
            most = WEIGHTS_SHARE * torch.cuda.mem_get_info(self._device)[1]
            candidates = [each for each in candidates if 2 * each.parameters <= most] or candidates[-1:]
        return HybridModel(candidates[0], RandomWeights(), device=self._device, dtype=torch.bfloat16)

    @contextlib.contextmanager
    def _stream(self):  # type: ignore[no-untyped-def]
        """Switch to a separate stream, as the engine does; no effect without a card."""
        if self._device.type != "cuda":
            yield None
            return
        from mamba_server.engine.execution.cuda_stream import CudaStream

        stream = CudaStream(self._device)
        stream.stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream.stream):
            yield stream
        stream.stream.synchronize()

    @staticmethod
    def _bytes(config: ModelConfig, decode: Decode) -> int:
        """Return what a decode step moves at least: weights once, states there and back, keys and values."""
        weights = 2 * (config.parameters - config.vocab_size * config.hidden_size)
        state = state_bytes(config, decode.state_dtype, "bfloat16").total
        tracked = len(range(0, decode.rows, decode.tracked)) if decode.tracked else 0
        keys = kv_bytes_per_token(config, "bfloat16") * CONTEXT
        written = decode.rows / decode.ring if decode.ring else decode.rows
        return int(weights + (decode.rows + written + tracked) * state + decode.rows * keys)

    @staticmethod
    def _words(config: ModelConfig) -> str:
        return f"{config.family}, {len(config.layers)} blocks, {config.parameters / 1e9:.2f}B"


def _half(config: ModelConfig) -> ModelConfig:
    count = len(config.layers) // 2
    half = replace(config, layers=config.layers[:count], checkpoint_layers=config.checkpoint_layers[:count])
    return replace(half, parameters=count_parameters(half))
