"""The API process without an engine process: the test reads what the engine is told and answers for it."""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from asgi import Asked
from eventually import until
from mamba_edge.api_keys import KeyFile
from mamba_server import wire
from mamba_server.api.admin import make_admin
from mamba_server.api.app import make_app
from mamba_server.api.drain import Drain
from mamba_server.api.engine_link.engine_client import EngineClient
from mamba_server.api.metrics.request_metrics import RequestMetrics
from mamba_server.api.serving import Serving
from mamba_settings.engine_settings import EngineSettings
from mamba_text.chat_template import ChatTemplate
from mamba_text.generation_defaults import GenerationDefaults
from mamba_text.prompt import TextProcessor
from mamba_text.tokenizer import Tokenizer
from tiny_model import TEMPLATE, byte_level_tokenizer

TOKENIZER = Tokenizer(byte_level_tokenizer(), {"bos_token": "<s>"})
READY = wire.Ready(TOKENIZER.rust.get_vocab_size(), 128, (2,), {"strategy": "NoBuffer"})


def ids_of(text: str) -> list[int]:
    """Return token ids of a text, without special ones."""
    ids: list[int] = TOKENIZER.encoding(text).ids
    return ids


class ScriptedProcess:
    """In the place of the engine process: keeps what is sent to it."""

    def __init__(self) -> None:
        self.sent: list[wire.ToEngine] = []
        self.react: Callable[[wire.ToEngine], None] = lambda _: None
        self.reads: Callable[[list[str]], None] = lambda _: None

    def send(self, message: wire.ToEngine) -> None:
        self.sent.append(message)
        self.react(message)
        if isinstance(message, wire.AddRequest):
            self.reads([message.request_id])


class Engine:
    """A ready `EngineClient` over a scripted process, and the words of the engine."""

    def __init__(self, *, ready: bool = True) -> None:
        self.process = ScriptedProcess()
        self.client = EngineClient()
        self.client._process = self.process  # type: ignore[assignment]
        self.process.reads = lambda read: self.client._route(wire.Taken(read))
        if ready:
            self.client._route(READY)

    def messages(self, kind: type) -> list[Any]:
        """Return the messages of one kind that the engine got."""
        return [message for message in self.process.sent if isinstance(message, kind)]

    @property
    def requests(self) -> list[wire.AddRequest]:
        return self.messages(wire.AddRequest)

    def has_requests(self, count: int) -> bool:
        """Return whether the engine got that many requests."""
        return len(self.requests) >= count

    @property
    def aborted(self) -> list[str]:
        return [message.request_id for message in self.messages(wire.AbortRequest)]

    def send(self, *messages: wire.FromEngine) -> None:
        """Send messages as the engine."""
        for message in messages:
            self.client._route(message)

    def delta(self, token_ids: Sequence[int] | str, *, of: int = 0, index: int = 0, **more: Any) -> None:
        """Send new tokens for the `of`-th request the engine got."""
        ids = ids_of(token_ids) if isinstance(token_ids, str) else list(token_ids)
        delta = wire.SequenceDelta(self.requests[of].request_id, index, ids, **more)
        self.send(wire.Outputs([delta]))

    def rejects(self, status: int, code: str, *, of: int = 0, retry_after: float | None = None) -> None:
        """Refuse the `of`-th request as the engine."""
        request_id = self.requests[of].request_id
        self.send(
            wire.RequestRejected(request_id, status, "server_error", code, "the engine's words", retry_after)
        )

    def dies(self) -> None:
        """End the engine process."""
        self.client._fail_open_requests("the engine process was killed by signal 9")


@cache
def compiled(template: str) -> ChatTemplate:
    """Compile once for all tests: its use changes nothing, and compiling takes longer than most tests."""
    return ChatTemplate(template, TOKENIZER.special_tokens)


class Api:
    """Both applications of a server over a scripted engine."""

    def __init__(self, *, keys: KeyFile | None = None, token: KeyFile | None = None, **options: Any) -> None:
        self.engine = Engine(ready=options.pop("ready", True))
        template = options.pop("template", TEMPLATE)
        self.registry = CollectorRegistry()
        metrics = RequestMetrics(self.registry, "tiny")
        settings = EngineSettings(model="tiny", max_waiting_requests=options.pop("waiting", 8), **options)
        self.serving = Serving(settings, "tiny", self.engine.client, metrics, Drain())
        chat_template = None if template is None else compiled(template)
        self.serving.text = TextProcessor(TOKENIZER, chat_template, GenerationDefaults())
        self._keys, self._token = keys, token

    @cached_property
    def app(self) -> ASGIApp:
        """The public application."""
        return make_app(self.serving, self.registry, self._keys)

    @cached_property
    def admin(self) -> ASGIApp:
        """The admin application."""
        return make_admin(self.serving, self._token)

    async def chat(self, body: dict[str, Any], parts: Sequence[str], finish: str = "stop") -> Asked:
        """Return the answer to a chat when the model writes `parts`."""
        request = Asked(self.app, "POST", "/v1/chat/completions").whole(body)
        await until(lambda: self.engine.has_requests(1) or request.status)
        if not request.status:
            await self.write(*parts, finish=finish)
        return await request.done()

    async def write(self, *parts: str, finish: str = "stop", **more: Any) -> None:
        """Write the parts of an answer as the model, once it is asked; `more`: fields of the first delta."""
        await until(lambda: self.engine.has_requests(1))
        for place, part in enumerate(parts):
            last = place == len(parts) - 1
            self.engine.delta(part, finish_reason=finish if last else None, **(more if place == 0 else {}))

    def count(self, name: str, **labels: str) -> float:
        """Return one sample; 0 when it is not there."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def answered(self) -> dict[tuple[str, str], float]:
        """Return the number of counted answers, by route and status."""
        return {
            (sample.labels["route"], sample.labels["status"]): sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == "mambaserve_http_requests_total"
        }

    def finished(self) -> dict[str, float]:
        """Return the ended sequences by reason, without empty reasons."""
        reasons = ("stop", "length", "abort", "error")
        counts = {
            reason: self.count("mambaserve_requests_finished_total", model="tiny", reason=reason)
            for reason in reasons
        }
        return {reason: count for reason, count in counts.items() if count}
