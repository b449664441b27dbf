"""`GrammarChecker`: says whether a grammar can be followed, before the engine hears of it.

Used by the two generation endpoints, one in a process. The grammar is made by `mamba_server.grammar_check`,
which is started for the first of them and again whenever it ended. What was found is remembered, since
clients repeat their forms; long grammars do not stand in front of short ones, nor those of one client in
front of another's.
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
"""Longer grammars wait in a lane of their own."""
MOST_KNOWN = 4096
"""Grammars of which is remembered whether they can be followed: a digest and some words each."""
MOST_WAITING = 128
"""Requests whose grammars may wait in a lane. One client may have as many as there is room left for others:
half of all where nobody else waits, and the less the more do."""
SILENCE_SECONDS = 30.0
"""The process answers within two seconds of its own time; after this it counts as hung."""
HUNG = "it could not be checked in time; try again"


@dataclass(frozen=True, slots=True)
class GrammarTokens:
    """The tokens that a grammar is made of."""

    file: Path
    """The model's tokenizer.json."""
    vocab_size: int
    ends: tuple[int, ...]
    """Tokens at which an answer may end."""


@dataclass(slots=True, eq=False)
class _Question:
    """A grammar that waits to be checked, for all who sent it."""

    digest: bytes
    grammar: str
    found: asyncio.Future[str]
    askers: int = 0
    running: bool = False


@dataclass(slots=True)
class _Lane:
    """Grammars of one kind; clients take turns, and one grammar is being checked at a time."""

    waiting: OrderedDict[str, deque[_Question]] = field(default_factory=OrderedDict)
    busy: bool = False
    served: str = ""
    """The client that had the last turn."""
    askers: Counter[str] = field(default_factory=Counter)
    """Requests that wait, by client."""

    def add(self, client: str, question: _Question) -> None:
        self.waiting.setdefault(client, deque()).append(question)

    def next(self) -> _Question | None:
        """Take the first of the client whose turn it is; who had the last turn comes behind others."""
        if self.served in self.waiting:
            self.waiting.move_to_end(self.served)
        while self.waiting:
            self.served, questions = next(iter(self.waiting.items()))
            question = questions.popleft()
            if not questions:
                del self.waiting[self.served]
            if question.askers:
                return question
        return None

    @contextlib.contextmanager
    def room(self, client: str) -> Iterator[None]:
        """Count a request while its grammar waits. Raises TooManyForms."""
        if self.askers[client] >= MOST_WAITING - self.askers.total():
            raise TooManyForms("too many forms of answers wait to be checked; try again later")
        self.askers[client] += 1
        try:
            yield
        finally:
            self.askers[client] -= 1
            if not self.askers[client]:
                del self.askers[client]


class GrammarChecker:
    """The checks of one served model."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._asked: dict[bytes, _Question] = {}
        self._lanes = {True: _Lane(), False: _Lane()}
        self._process: asyncio.subprocess.Process | None = None
        self._tokens: GrammarTokens | None = None
        self._starting = asyncio.Lock()
        self._numbers = 0
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def check(self, grammar: str, tokens: GrammarTokens, client: str = "") -> str:
        """Why the grammar cannot be followed, "" = it can. `client`: who asks, for taking turns. Raises
        TooManyForms."""
        digest = hashlib.sha256(grammar.encode("utf-8", "surrogatepass")).digest()
        if tokens != self._tokens:
            self._known.clear()
            self._tokens = tokens
            self._end()
        if (known := self._known.get(digest)) is not None:
            self._known.move_to_end(digest)
            return known
        with self._lanes[len(grammar) <= SHORT_CHARS].room(client):
            return await self._found(digest, grammar, client)

    async def close(self) -> None:
        """End the process; nothing is checked any more."""
        for task in list(self._tasks):
            task.cancel()
        process = self._process
        self._end()
        if process is not None:
            await process.wait()

    async def _found(self, digest: bytes, grammar: str, client: str) -> str:
        question = self._asked.get(digest)
        if question is None:
            question = self._enqueue(digest, grammar, client)
        question.askers += 1
        try:
            return await asyncio.shield(question.found)
        finally:
            question.askers -= 1
            if not question.askers and not question.running:
                self._asked.pop(digest, None)

    def _enqueue(self, digest: bytes, grammar: str, client: str) -> _Question:
        lane = self._lanes[len(grammar) <= SHORT_CHARS]
        question = _Question(digest, grammar, asyncio.get_running_loop().create_future())
        self._asked[digest] = question
        lane.add(client, question)
        if not lane.busy:
            lane.busy = True
            task = asyncio.create_task(self._work(lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return question

    async def _work(self, lane: _Lane) -> None:
        """Check what waits in a lane, one grammar after the other."""
        try:
            while (question := lane.next()) is not None:
                question.running = True
                failure, certain = await self._ask(question.grammar)
                self._asked.pop(question.digest, None)
                if certain:
                    self._known[question.digest] = failure
                    if len(self._known) > MOST_KNOWN:
                        self._known.popitem(last=False)
                if not question.found.done():
                    question.found.set_result(failure)
        finally:
            lane.busy = False

    async def _ask(self, grammar: str) -> tuple[str, bool]:
        """What the process says, and whether it would say so again."""
        for _ in range(2):  # the process may have ended since it was last asked
            process = await self._started()
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

    async def _started(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                assert self._tokens is not None
                tokens = self._tokens
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, str(tokens.file), str(tokens.vocab_size), *map(str, tokens.ends),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    # Ctrl-C on the terminal is for this process, which drains first.
                    start_new_session=True,
                )  # fmt: skip
                task = asyncio.create_task(self._read(self._process))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Hand out what the process answers until it ends."""
        assert process.stdout is not None
        while line := await process.stdout.readline():
            said = json.loads(line)
            answer = self._answers.get(said["id"])
            if answer is not None and not answer.done():
                answer.set_result(said["failure"])
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
