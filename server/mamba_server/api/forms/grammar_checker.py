"""`GrammarChecker`: checks whether a grammar can be followed, before it is sent to the engine.

The API process has one checker, for all endpoints that generate. A child process,
`mamba_server.grammar_check`, compiles the grammars; it is started for the first grammar, and again whenever
it has ended. Results are kept, since clients repeat their forms. Long grammars do not delay short ones, and
the grammars of one client do not delay those of another.
"""

import asyncio
import contextlib
import hashlib
import json
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mamba_server.api.requests.errors import TooManyForms
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)

COMMAND = (sys.executable, "-m", "mamba_server.grammar_check")
SHORT_CHARS = 2048
"""Number of characters up to which a grammar waits in the queue for short ones."""
MAX_RESULTS = 4096
"""Maximum number of results that are kept: a digest and a message for each."""
MAX_WAITING = 128
"""Maximum number of requests whose grammars wait in one queue. A client may have at most as many as it leaves
free: half of all if no other client waits, and fewer the more others do."""
SILENCE_SECONDS = 30.0
"""Time without an answer after which the process counts as hung; it bounds each check to two CPU seconds."""
HUNG = "it could not be checked in time; try again"


@dataclass(frozen=True, slots=True)
class GrammarTokens:
    """The tokens of the model, for which the grammars of its answers are compiled."""

    file: Path
    """The model's tokenizer.json."""
    vocab_size: int
    ends: tuple[int, ...]
    """Ids of the tokens that may end an answer."""


@dataclass(slots=True, eq=False)
class _Question:
    """A grammar that waits to be checked, for all requests that have the same one."""

    digest: bytes
    grammar: str
    failure: asyncio.Future[str]
    requests: int = 0
    running: bool = False


@dataclass(slots=True)
class _Lane:
    """Queue of short or of long grammars; clients take turns, and one grammar is checked at a time."""

    waiting: OrderedDict[str, deque[_Question]] = field(default_factory=OrderedDict)
    busy: bool = False
    last_client: str = ""
    """Client that had the last turn."""
    requests: Counter[str] = field(default_factory=Counter)
    """Number of waiting requests by client."""

    def add(self, client: str, question: _Question) -> None:
        self.waiting.setdefault(client, deque()).append(question)

    def next(self) -> _Question | None:
        """Take and return the first grammar of the client whose turn it is; None = none waits.

        The client that had the last turn comes after the others.
        """
        if self.last_client in self.waiting:
            self.waiting.move_to_end(self.last_client)
        while self.waiting:
            self.last_client, questions = next(iter(self.waiting.items()))
            question = questions.popleft()
            if not questions:
                del self.waiting[self.last_client]
            if question.requests:
                return question
        return None

    @contextlib.contextmanager
    def room(self, client: str) -> Iterator[None]:
        """Count a request of `client` while its grammar waits.

        Raises TooManyForms if too many wait; a client with many reaches that limit first.
        """
        if self.requests[client] >= MAX_WAITING - self.requests.total():
            raise TooManyForms("too many output forms wait to be checked; try again later")
        self.requests[client] += 1
        try:
            yield
        finally:
            self.requests[client] -= 1
            if not self.requests[client]:
                del self.requests[client]


class GrammarChecker:
    """Checks in a child process whether grammars of requests can be compiled, and keeps the results."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._failures: OrderedDict[bytes, str] = OrderedDict()
        """Results of checks by digest of the grammar; "" = it can be followed."""
        self._questions: dict[bytes, _Question] = {}
        """Grammars that wait or are being checked, by digest."""
        self._lanes = {True: _Lane(), False: _Lane()}
        self._process: asyncio.subprocess.Process | None = None
        self._tokens: GrammarTokens | None = None
        self._starting = asyncio.Lock()
        self._numbers = 0
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def check(self, grammar: str, tokens: GrammarTokens, client: str = "") -> str:
        """Return why the grammar cannot be followed; "" means that it can.

        `client`: name by which clients take turns. Raises TooManyForms.
        """
        digest = hashlib.sha256(grammar.encode("utf-8", "surrogatepass")).digest()
        if tokens != self._tokens:
            self._failures.clear()
            self._tokens = tokens
            self._end()
        if (failure := self._failures.get(digest)) is not None:
            self._failures.move_to_end(digest)
            return failure
        with self._lanes[len(grammar) <= SHORT_CHARS].room(client):
            return await self._wait_for(digest, grammar, client)

    async def close(self) -> None:
        """End the child process and the checks that wait."""
        for task in list(self._tasks):
            task.cancel()
        process = self._process
        self._end()
        if process is not None:
            await process.wait()

    async def _wait_for(self, digest: bytes, grammar: str, client: str) -> str:
        question = self._questions.get(digest)
        if question is None:
            question = self._enqueue(digest, grammar, client)
        question.requests += 1
        try:
            return await asyncio.shield(question.failure)
        finally:
            question.requests -= 1
            if not question.requests and not question.running:
                self._questions.pop(digest, None)

    def _enqueue(self, digest: bytes, grammar: str, client: str) -> _Question:
        lane = self._lanes[len(grammar) <= SHORT_CHARS]
        question = _Question(digest, grammar, asyncio.get_running_loop().create_future())
        self._questions[digest] = question
        lane.add(client, question)
        if not lane.busy:
            lane.busy = True
            task = asyncio.create_task(self._work(lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return question

    async def _work(self, lane: _Lane) -> None:
        """Check the grammars that wait in one queue, one after the other."""
        try:
            while (question := lane.next()) is not None:
                question.running = True
                failure, certain = await self._ask(question.grammar)
                self._questions.pop(question.digest, None)
                if certain:
                    self._failures[question.digest] = failure
                    if len(self._failures) > MAX_RESULTS:
                        self._failures.popitem(last=False)
                if not question.failure.done():
                    question.failure.set_result(failure)
        finally:
            lane.busy = False

    async def _ask(self, grammar: str) -> tuple[str, bool]:
        """Return the result of a check, and whether another check would have the same result.

        A process that does not answer within `SILENCE_SECONDS`, or ends twice, gives the result `HUNG`.
        """
        for _ in range(2):  # the process may have ended since the last check
            process = await self._running_process()
            assert process.stdin is not None
            self._numbers += 1
            number, answer = self._numbers, asyncio.get_running_loop().create_future()
            self._answers[number] = answer
            try:
                process.stdin.write(json.dumps({"id": number, "grammar": grammar}).encode() + b"\n")
                async with asyncio.timeout(SILENCE_SECONDS):
                    return await answer, True
            except TimeoutError:
                log.error("grammar_check_hung", seconds=SILENCE_SECONDS)
                self._end()
                return HUNG, False
            except ConnectionError:
                continue
            finally:
                self._answers.pop(number, None)
        return HUNG, False

    async def _running_process(self) -> asyncio.subprocess.Process:
        """Return the child process, which is started if it does not run."""
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                assert self._tokens is not None
                tokens = self._tokens
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, str(tokens.file), str(tokens.vocab_size), *map(str, tokens.ends),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    # Ctrl-C in the terminal must reach the API process only, which drains first.
                    start_new_session=True,
                )  # fmt: skip
                task = asyncio.create_task(self._read(self._process))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Hand out the answers of the process until it ends."""
        assert process.stdout is not None
        while line := await process.stdout.readline():
            message = json.loads(line)
            answer = self._answers.get(message["id"])
            if answer is not None and not answer.done():
                answer.set_result(message["failure"])
        if process is self._process:
            self._process = None
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError("the process that checks grammars ended"))

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
