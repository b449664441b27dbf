"""`python -m mamba_server.grammar_check`: says which grammars can be followed, in processes that may die.

Started by the API process. Native code reads what clients write here and nowhere else before it is known to
end: each grammar is made in a fork of its own, with a bound on its time, its stack and its memory, exactly as
the engine will make it. A fork that ends otherwise is an answer, too. Nobody else's request is in a fork.

Standard input has a JSON object a line, `{"id": 1, "grammar": "…"}`, standard output
`{"id": 1, "failure": "…"}`; the failure of a grammar that can be followed is empty. Ends with its input.
"""

import json
import os
import resource
import select
import signal
import sys
from pathlib import Path

from llguidance import LLTokenizer

from mamba_server.grammar_matcher import first_mask, make_matcher, make_tokenizer

CPU_SECONDS = 1.5
"""Of one grammar; those of clients take some milliseconds."""
MORE_MEMORY = 512 << 20
"""Bytes that one grammar may take."""
STACK = 8 << 20
"""Bytes; the engine gives a grammar eight times as much."""
MOST_CHARS = 600
"""Of a failure: a line is written in one piece, however its characters are escaped."""
LINE = 1 << 16
TOO_LONG, TOO_LARGE, TOO_DEEP = (
    f"it takes more than {CPU_SECONDS:g} s to be made; make it simpler",
    f"it takes more than {MORE_MEMORY >> 20} MiB to be made; make it smaller",
    "it cannot be made, most likely because it is nested too deeply; make it simpler",
)
_FAILURE_OF_SIGNAL: dict[int, str] = {
    signal.SIGPROF: TOO_LONG,
    signal.SIGABRT: TOO_LARGE,
    signal.SIGKILL: TOO_LARGE,
}


class CheckingProcess:
    """One process that forks for each grammar that it reads."""

    def __init__(self, tokenizer: LLTokenizer | None, vocab_size: int, broken: str) -> None:
        """`broken`: why there is no tokenizer, "" = there is one."""
        self._tokenizer, self._vocab_size, self._broken = tokenizer, vocab_size, broken
        self._forks: dict[int, int] = {}
        """By process: the id of its request."""

    def run(self) -> None:
        """Answer until the input ends."""
        ears, mouth = os.pipe()
        for end in (ears, mouth):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(mouth)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        pending = bytearray()
        while True:
            ready, _, _ = select.select([0, ears], [], [])
            if ears in ready:
                os.read(ears, 4096)
                self._reap()
            if 0 not in ready:
                continue
            read = os.read(0, LINE)
            if not read:
                return
            pending += read
            *lines, rest = pending.split(b"\n")
            pending = bytearray(rest)
            for line in lines:
                asked = json.loads(line)
                self._begin(asked["id"], asked["grammar"])

    def _begin(self, number: int, grammar: str) -> None:
        child = os.fork()
        if child:
            self._forks[child] = number
            return
        code = 1
        try:
            answer(number, self._checked(grammar))
            code = 0
        finally:
            os._exit(code)

    def _checked(self, grammar: str) -> str:
        """In the fork."""
        signal.set_wakeup_fd(-1)
        # What ends in native code is told to whoever asked, and is no news for the log.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        bound_this_process()
        if self._tokenizer is None:
            return self._broken
        try:
            matcher = make_matcher(self._tokenizer, grammar)
            words = first_mask(matcher, self._vocab_size)
            failure = str(matcher.get_error()) or ("" if words.any() else "no token may come first")
            del matcher  # what is nested is taken apart as it was made
        except (ValueError, MemoryError) as error:
            return str(error) or TOO_LARGE
        return failure

    def _reap(self) -> None:
        while self._forks:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            number = self._forks.pop(process)
            if status:
                killer = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                answer(number, _FAILURE_OF_SIGNAL.get(killer, TOO_DEEP))


def bound_this_process() -> None:
    """Let it take so much time, stack and memory from now on, and no more."""
    if (sizes := Path("/proc/self/statm")).exists():
        most = int(sizes.read_text().split()[0]) * resource.getpagesize() + MORE_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    stack = STACK if hard == resource.RLIM_INFINITY else min(STACK, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)


def answer(number: int, failure: str) -> None:
    """Write one line."""
    os.write(1, json.dumps({"id": number, "failure": failure[:MOST_CHARS]}).encode() + b"\n")


def main() -> None:
    path, vocab_size, *ends = sys.argv[1:]
    tokenizer, broken = None, ""
    try:
        tokenizer = make_tokenizer(Path(path), int(vocab_size), [int(end) for end in ends])
    except (ValueError, OSError) as error:
        broken = str(error)
    CheckingProcess(tokenizer, int(vocab_size), broken).run()


if __name__ == "__main__":
    main()
