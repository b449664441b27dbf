"""`LLM`: one model and its engine in a Python program."""

import contextlib
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mamba_api.dialects.paths import CHAT_COMPLETIONS, COMPLETIONS
from mamba_cli.errors import CliError
from mamba_cli.local.loading.loading_view import LoadingView
from mamba_cli.local.loading.readiness import EngineReadiness
from mamba_cli.local.own_engine import own_engine
from mamba_cli.model_argument import model_uri
from mamba_planner.families import load_model_config
from mamba_server.model.checkpoint.source import resolve
from mamba_text.errors import TemplateRefused
from mamba_text.prompt import TextProcessor
from mambaserve.answers import Answer, Score, answer_of, score_of
from mambaserve.background_loop import BackgroundLoop
from mambaserve.engine_calls import EngineCalls
from mambaserve.errors import EngineEnded, RequestRefused, StateMismatch
from mambaserve.recurrent_state import RecurrentState

Prompt = str | list[int]
"""A text, or its token ids."""
ShowsProgress = bool | Callable[[], None] | None
"""Whether a bar is shown, or a function that is called after each answer; None = at a terminal."""
Conversation = list[dict[str, Any]]
"""Messages in the form of the chat API."""


class LLM:
    """A loaded model that generates, chats and scores, and whose states can be read and changed.

    The engine is the one of `mambaserve serve`, in a process of its own that ends with this object: use a
    `with` block, or call `close`. Requests of one call are computed together, and a beginning that
    prompts have in common is computed once.
    """

    def __init__(self, model: str, *, quiet: bool = False, **settings: Any) -> None:
        """Load a model.

        Args:
            model: directory, OWNER/NAME of the Hub, or builtin://tiny-recall, which ships with mambaserve.
            quiet: whether to hide the progress of loading.
            settings: options of `mambaserve serve`, such as `max_model_len=4096` or `batch_invariant=True`.

        Raises:
            EngineEnded: the engine could not start; the message says why.
        """
        uri = model_uri(model)
        self._stack = contextlib.ExitStack()
        self._loop = BackgroundLoop()
        self._stack.callback(self._loop.close)
        try:
            with _shown(uri, quiet) as show:
                # The kernel ends the engine with the thread that started it, which must live as long.
                opened = own_engine(uri, settings, show)
                self._engine = self._loop.call(opened.__enter__)
            self._stack.callback(lambda: self._loop.call(lambda: opened.__exit__(None, None, None)))
            self._calls = EngineCalls(self._engine)
            self._stack.callback(lambda: self._loop.run(self._calls.close()))
            directory = resolve(uri)
            self.config = load_model_config(directory)
            """Shape of the model."""
            self._text = TextProcessor.load(directory)
        except CliError as error:
            self.close()
            raise EngineEnded(str(error)) from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the engine and free its memory; further calls are errors."""
        self._stack.close()

    # --- text ----------------------------------------------------------------------------------------

    def generate(
        self, prompts: Prompt | Sequence[Prompt], *, progress: ShowsProgress = None, **fields: Any
    ) -> list[Answer]:
        """Return the answers to prompts, in their order.

        Args:
            prompts: one prompt or several, each a text or token ids.
            progress: whether to show a bar; None = for several prompts at a terminal. A function is
                called after each answer, in place of a bar.
            fields: fields of the completion API, such as `max_tokens`, `temperature`, `seed`, `stop`, `n`.

        Raises:
            RequestRefused: the engine refused one of them; none of the answers is returned.
            EngineEnded: the engine's process ended.
        """
        listed = _listed(prompts)
        bodies = [{**fields, "prompt": prompt} for prompt in listed]
        return [answer_of(body) for body in self._post_all(COMPLETIONS, bodies, progress)]

    def chat(
        self,
        conversations: Conversation | Sequence[Conversation],
        *,
        progress: ShowsProgress = None,
        **fields: Any,
    ) -> list[Answer]:
        """Return the next answers in conversations, in their order.

        Args:
            conversations: messages of one conversation, or several conversations.
            progress: whether to show a bar; None = for several conversations at a terminal. A function is
                called after each answer, in place of a bar.
            fields: fields of the chat API, such as `max_tokens`, `tools`, `response_format`.

        Raises:
            RequestRefused: the engine refused one of them; none of the answers is returned.
            EngineEnded: the engine's process ended.
        """
        single = bool(conversations) and isinstance(conversations[0], dict)
        bodies = [
            {**fields, "messages": messages} for messages in ([conversations] if single else conversations)
        ]
        return [answer_of(body) for body in self._post_all(CHAT_COMPLETIONS, bodies, progress)]

    def score(self, texts: Prompt | Sequence[Prompt], *, progress: ShowsProgress = None) -> list[Score]:
        """Return the log-probabilities of the tokens of texts, in their order.

        Args:
            texts: one text or several, each a text or token ids.
            progress: whether to show a bar; None = for several texts at a terminal. A function is
                called after each text, in place of a bar.

        Raises:
            RequestRefused: the engine refused one of them, such as one that is too long.
            EngineEnded: the engine's process ended.
        """
        listed = _listed(texts)
        fields = {"max_tokens": 0, "echo": True, "logprobs": 0, "prompt_logprobs": 0}
        bodies = [{**fields, "prompt": text} for text in listed]
        return [score_of(body) for body in self._post_all(COMPLETIONS, bodies, progress)]

    def tokens(self, text: str, *, special: bool = False) -> list[int]:
        """Return the token ids of a text; with `special`, also the special tokens around a prompt."""
        return list(self._text.tokenizer.encode(text, special=special))

    def special_token_id(self, name: Literal["bos", "eos"]) -> int | None:
        """Return the token that the tokenizer names as the beginning or the end; None = it names none."""
        tokenizer = self._text.tokenizer
        text = tokenizer.special_tokens.get(f"{name}_token")
        return None if text is None else tokenizer.rust.token_to_id(text)

    def chat_text(self, messages: Conversation, *, continue_final: bool = False) -> str:
        """Return a conversation as the model's chat template shows it.

        With `continue_final` the text ends where the last message ends. Raises `RequestRefused` for a model
        without a template, and for messages that its template refuses.
        """
        if self._text.template is None:
            raise RequestRefused("the model has no chat template")
        try:
            return self._text.template.text(messages, continue_final=continue_final)
        except TemplateRefused as error:
            raise RequestRefused(str(error)) from error

    @cached_property
    def context_tokens(self) -> int:
        """Largest number of tokens of a prompt and its answer together that the engine takes."""
        [answer] = self._post_all("/tokenize", [{"prompt": "x"}], progress=False)
        return int(answer["max_model_len"])

    # --- states --------------------------------------------------------------------------------------

    def state(self, prompt: Prompt) -> RecurrentState:
        """Return the state after a prompt, at the last boundary of a page that the prompt reaches.

        With `LLM(..., page_size=1)` every token is such a boundary.

        Raises:
            RequestRefused: the prompt is shorter than a page, or longer than the model's context.
            EngineEnded: the engine's process ended.
        """
        with tempfile.TemporaryDirectory(prefix="mambaserve-state-") as folder:
            file = Path(folder) / "state.session"
            self._loop.run(self._calls.save_session({"prompt": prompt}, file))
            return RecurrentState.read(file, self.config)

    def load_state(self, file: Path | str) -> RecurrentState:
        """Return the state in a session file. Raises `StateMismatch` for a file of another model."""
        return RecurrentState.read(file, self.config)

    def generate_from(
        self, state: RecurrentState, texts: Prompt | Sequence[Prompt] = "", **fields: Any
    ) -> list[Answer]:
        """Return the answers to texts that continue after a state, in their order.

        Args:
            state: a state of this model, changed or not. Requests of other calls never resume from it.
            texts: one continuation or several, each a text or token ids. At least one token must follow the
                state.
            fields: fields of the completion API.

        Raises:
            StateMismatch: the state is of another model, or the engine has no room for it.
            RequestRefused: the engine refused one of the continuations.
            EngineEnded: the engine's process ended.
        """
        salt = f"state-{uuid.uuid4().hex}"
        with tempfile.TemporaryDirectory(prefix="mambaserve-state-") as folder:
            file = Path(folder) / "state.session"
            state.salted(salt).write(file)
            self._loop.run(self._calls.load_session(file))
        listed = _listed(texts)
        rests = [self.tokens(text) if isinstance(text, str) else text for text in listed]
        prompts = [state.token_ids + rest for rest in rests]
        answers = self.generate(prompts, cache_salt=salt, **fields)
        if any(answer.cached_tokens < state.depth for answer in answers):
            raise StateMismatch("the engine had to evict the state before it was used: give it more memory")
        return answers

    def _post_all(
        self, path: str, bodies: Sequence[dict[str, Any]], progress: ShowsProgress
    ) -> list[dict[str, Any]]:
        if callable(progress):
            advance = progress
            return self._loop.run(self._calls.post_all(path, bodies, lambda _: advance()))
        has_bar = len(bodies) > 1 and sys.stderr.isatty() if progress is None else progress
        with _bar(len(bodies), is_shown=has_bar) as advance:
            return self._loop.run(self._calls.post_all(path, bodies, lambda _: advance()))


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts as a list, of one item if there is one: a text, or a list of token ids."""
    if isinstance(prompts, str):
        return [prompts]
    token_ids = [token for token in prompts if isinstance(token, int)]
    return [token_ids] if token_ids else [prompt for prompt in prompts if not isinstance(prompt, int)]


@contextlib.contextmanager
def _shown(model: str, quiet: bool) -> Iterator[Callable[[EngineReadiness | None], None]]:
    """Yield the function that shows the progress of loading."""
    if quiet:
        yield lambda _: None
        return
    view = LoadingView(Console(stderr=True))
    try:
        yield lambda readiness: view.show(model, readiness)
    finally:
        view.close()


@contextlib.contextmanager
def _bar(total: int, *, is_shown: bool) -> Iterator[Callable[[], None]]:
    """Yield the function that moves a bar of `total` prompts by one."""
    if not is_shown:
        yield lambda: None
        return
    columns = (TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("prompts", total=total)
        yield lambda: progress.advance(task)
