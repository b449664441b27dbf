"""What the endpoints share: the engine, the text side, the settings, the counters of one served model.

Made once by `server`; the text side is set before the engine is started, so whoever got limits has it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mamba_edge.errors import InvalidRequest, ModelNotFound, NotReady, TooManyRequests
from mamba_server.api.drain import Drain
from mamba_server.api.engine_link.engine_client import EngineClient
from mamba_server.api.forms.grammar_checker import GrammarChecker, GrammarTokens
from mamba_server.api.metrics.request_metrics import RequestMetrics
from mamba_server.api.requests.model_limits import ModelLimits
from mamba_settings.engine_settings import EngineSettings
from mamba_telemetry.tracing import OFF, Tracing
from mamba_text.encoder_pool import EncoderPool
from mamba_text.prompt import TextProcessor

MOST_SEQUENCES = 1024
"""Of one HTTP request: prompts times choices."""


@dataclass(slots=True)
class Serving:
    """One served model."""

    settings: EngineSettings
    model_name: str
    engine: EngineClient
    metrics: RequestMetrics
    drain: Drain
    text: TextProcessor | None = None
    text_files: Path | None = None
    """The model directory that `text` was loaded from."""
    on_strategy: Callable[[str], None] = lambda _: None
    """Told when the strategy was changed while serving."""
    encoders: EncoderPool = field(default_factory=EncoderPool)
    grammars: GrammarChecker = field(default_factory=GrammarChecker)
    preparing: int = 0
    """Prompts that were admitted and are not with the engine yet."""
    tracing: Tracing = OFF
    created: int = field(default_factory=lambda: int(time.time()))

    def limits(self) -> ModelLimits:
        """Raises NotReady."""
        ready = self.engine.require_ready()
        return ModelLimits(ready.vocab_size, ready.max_model_len, ready.eos_token_ids)

    async def check_grammar(self, grammar: str, client: str, places: "Places") -> str:
        """Why answers of this model cannot follow the grammar, "" = they can. A request gives its places up
        while its grammar waits to be checked. Raises NotReady, TooManyForms, TooManyRequests."""
        if self.text is None or self.text_files is None:
            raise NotReady("the tokenizer is not loaded yet")
        ready = self.engine.require_ready()
        tokens = GrammarTokens(self.text_files / "tokenizer.json", ready.vocab_size, ready.eos_token_ids)
        with places.given_up():
            return await self.grammars.check(grammar, tokens, client)

    def check_model(self, name: str | None) -> None:
        """Raises ModelNotFound."""
        if name and name != self.model_name:
            raise self.not_served(name)

    def not_served(self, name: str) -> ModelNotFound:
        """That `name` is not, and what is."""
        return ModelNotFound(
            f"the model '{name[:200]}' does not exist here; '{self.model_name}' is served", param="model"
        )

    @contextmanager
    def admitted(self, prompts: int, n: int) -> Iterator["Places"]:
        """Bound what waits, around what is done until the engine has it: tokenizing costs, too.

        Yields the places that the prompts have. Raises TooManyRequests, or InvalidRequest for what could
        never be admitted.
        """
        most = self.settings.max_waiting_requests
        if prompts > most:
            raise InvalidRequest(
                f"prompt: {prompts} prompts in one request; at most {most} may wait", param="prompt"
            )
        if prompts * n > MOST_SEQUENCES:
            raise InvalidRequest(
                f"n: {prompts} prompts with {n} choices each are more than {MOST_SEQUENCES} sequences",
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
    """The places of one request's prompts among those that may wait for the engine."""

    serving: Serving
    prompts: int
    taken: int = 0

    def take(self) -> None:
        """Raises TooManyRequests."""
        waiting, most = self.serving.engine.waiting + self.serving.preparing, self._most
        if waiting + self.prompts > most:
            raise TooManyRequests(f"{waiting} requests are waiting, at most {most} may; try again later")
        self.serving.preparing += self.prompts
        self.taken = self.prompts

    def leave(self) -> None:
        """Make room, if it is not made yet."""
        self.serving.preparing -= self.taken
        self.taken = 0

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Leave room to others around what the engine is not needed for, and take it again. Raises
        TooManyRequests."""
        self.leave()
        yield
        self.take()

    @property
    def _most(self) -> int:
        return self.serving.settings.max_waiting_requests
