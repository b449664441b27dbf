"""`Serving`: what the endpoints of one served model share.

`server` builds one. `text` is set before the engine starts, so it is present whenever `limits` succeeds.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mamba_edge.api_keys import KeyFile
from mamba_edge.errors import InvalidRequest, ModelNotFound, NotReady, TooManyRequests
from mamba_edge.history.memory_history import MemoryHistory
from mamba_edge.history.response_history import ResponseHistory
from mamba_server.api.adapter_table import AdapterTable
from mamba_server.api.answers.requested_explanation import RecentExplanations
from mamba_server.api.drain import Drain
from mamba_server.api.engine_link.engine_client import EngineClient
from mamba_server.api.forms.grammar_checker import GrammarChecker, GrammarTokens
from mamba_server.api.metrics.request_metrics import RequestMetrics
from mamba_server.api.requests.model_limits import ModelLimits
from mamba_server.api.requests.model_pooling import model_pooling
from mamba_server.api.usage.usage_totals import UsageTotals
from mamba_settings.engine_settings import EngineSettings
from mamba_telemetry.tracing import OFF, Tracing
from mamba_text.encoder_pool import EncoderPool
from mamba_text.prompt import TextProcessor

MAX_SEQUENCES = 1024
"""Maximum number of sequences of one HTTP request: prompts times choices."""
LISTED_ADAPTERS = 8
"""Maximum number of adapters that an error names."""


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """The model that a request has chosen: the served one, or an adapter of it."""

    name: str
    adapter: str = ""
    """Fingerprint of the adapter; "" = none."""

    @property
    def adapter_name(self) -> str:
        """Name of the adapter; "" = none."""
        return self.name if self.adapter else ""


@dataclass(slots=True)
class Serving:
    """Holds what serves one model: its engine, text processor, settings and counters."""

    settings: EngineSettings
    model_name: str
    engine: EngineClient
    metrics: RequestMetrics
    drain: Drain
    text: TextProcessor | None = None
    text_files: Path | None = None
    """Model directory that `text` was loaded from."""
    on_strategy: Callable[[str], None] = lambda _: None
    """Called with the new strategy when it was changed while serving."""
    encoders: EncoderPool = field(default_factory=EncoderPool)
    grammars: GrammarChecker = field(default_factory=GrammarChecker)
    preparing: int = 0
    """Number of admitted prompts that are not with the engine yet."""
    tracing: Tracing = OFF
    _own_pooling: Literal["mean", "last"] | None = None
    """Pooling that the model's files state; None = not read yet."""
    history: ResponseHistory = field(init=False)
    """Kept responses, for clients that come without a gateway."""
    usage: UsageTotals = field(init=False)
    """Use of the engine, by key and adapter."""
    adapters: AdapterTable = field(init=False)
    """Adapters of the model that requests may choose."""
    explanations: RecentExplanations = field(default_factory=RecentExplanations)
    """Explanations of the last requests that asked for one."""
    keys: KeyFile | None = None
    """Accepted API keys; None = no key is needed."""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        settings = self.settings
        self.adapters = AdapterTable(self.engine)
        self.usage = UsageTotals(self.model_name)
        store = None
        if settings.response_ttl:
            store = MemoryHistory(settings.response_ttl, settings.response_budget, time.monotonic)
        self.history = ResponseHistory(store, settings.max_body_bytes)

    @property
    def pooling(self) -> Literal["mean", "last"]:
        """Pooling of vectors whose request names none."""
        if self.settings.pooling != "auto":
            return self.settings.pooling
        if self.text_files is None:
            return "last"
        if self._own_pooling is None:
            self._own_pooling = model_pooling(self.text_files)
        return self._own_pooling

    @property
    def moves_states(self) -> bool:
        """Whether other engines can fetch states from this one, which then also fetches from them."""
        ready = self.engine.ready
        return ready is not None and bool(ready.transfer_address)

    def limits(self) -> ModelLimits:
        """Return the limits that requests are checked against. Raises NotReady."""
        ready = self.engine.require_ready()
        return ModelLimits(ready.vocab_size, ready.max_model_len, ready.eos_token_ids)

    async def check_grammar(self, grammar: str, client: str, places: "Places") -> str:
        """Return why answers of this model cannot follow the grammar; "" means that they can.

        The request gives up its places while its grammar waits to be checked. Raises NotReady, TooManyForms,
        TooManyRequests.
        """
        if self.text is None or self.text_files is None:
            raise NotReady("the tokenizer is not loaded yet")
        ready = self.engine.require_ready()
        tokens = GrammarTokens(self.text_files / "tokenizer.json", ready.vocab_size, ready.eos_token_ids)
        with places.released():
            return await self.grammars.check(grammar, tokens, client)

    def check_model(self, name: str | None) -> ChosenModel:
        """Return the model with the name `name`; without a name, the served one. Raises ModelNotFound."""
        if not name or name == self.model_name:
            return ChosenModel(self.model_name)
        if (adapter := self.adapters.get(name)) is None:
            raise self.model_not_found(name)
        return ChosenModel(name, adapter.fingerprint)

    @contextmanager
    def using(self, name: str | None) -> Iterator[ChosenModel]:
        """Yield the model with the name `name`, whose adapter stays loaded while the context is open.

        Raises ModelNotFound.
        """
        chosen = self.check_model(name)
        with self.adapters.held(chosen.adapter):
            yield chosen

    def model_not_found(self, name: str) -> ModelNotFound:
        """Return the error for a request of a model that is not served."""
        others = "".join(f", '{adapter.name}'" for adapter in self.adapters.loaded[:LISTED_ADAPTERS])
        return ModelNotFound(
            f"the model '{name[:200]}' does not exist here; this server serves '{self.model_name}'{others}",
            param="model",
        )

    @contextmanager
    def admit(self, prompts: int, n: int, param: str = "prompt") -> Iterator["Places"]:
        """Hold places for a request's prompts until the engine has them: tokenizing costs, too.

        Yields the places. Raises TooManyRequests, or InvalidRequest, which names the field `param`, if the
        request can never be admitted.
        """
        limit = self.settings.max_waiting_requests
        if prompts > limit:
            raise InvalidRequest(
                f"{param}: the request has {prompts} prompts, and at most {limit} may wait at this server; "
                "send fewer of them in one request",
                param=param,
            )
        if prompts * n > MAX_SEQUENCES:
            raise InvalidRequest(
                f"n: {prompts} prompts with {n} choices each are more than {MAX_SEQUENCES} sequences; send "
                "fewer prompts or choices in one request",
                param="n",
            )
        places = Places(self, prompts)
        places.take()
        try:
            yield places
        finally:
            places.leave()


@dataclass(slots=True)
class Places:
    """Reserves places for one request's prompts among those that may wait for the engine."""

    serving: Serving
    prompts: int
    held: int = 0
    """Number of places that the request holds now: 0 or `prompts`."""

    def take(self) -> None:
        """Occupy one place for each prompt. Raises TooManyRequests."""
        waiting = self.serving.engine.waiting + self.serving.preparing
        limit = self.serving.settings.max_waiting_requests
        if waiting + self.prompts > limit:
            raise TooManyRequests(
                f"{waiting} requests are waiting, and at most {limit} may wait; try again later"
            )
        self.serving.preparing += self.prompts
        self.held = self.prompts

    def leave(self) -> None:
        """Release the places, if the request holds them."""
        self.serving.preparing -= self.held
        self.held = 0

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release the places while the context is open, then take them again. Raises TooManyRequests."""
        self.leave()
        yield
        self.take()
