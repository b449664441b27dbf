"""`python -m mamba_server.grammar_check`: checks which grammars can be followed, in processes that may die.

The API process starts it. Native code reads what clients write only here, until it is known to end: each
grammar is compiled in its own fork, with bounds on its time, stack and memory, exactly as the engine will
compile it. A fork that dies is a result, too. No fork holds another client's request.

Standard input has one JSON object a line, `{"id": 1, "grammar": "…"}`; standard output has `{"id": 1,
"failure": "…"}`, where the failure of a grammar that can be followed is empty. The process ends with its
input.
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
"""Bound on the CPU time of one grammar, in seconds. Grammars of clients usually take some milliseconds."""
MAX_MEMORY_BYTES = 512 << 20
"""Bytes of memory that one grammar may take."""
STACK_BYTES = 8 << 20
"""Bytes of stack of a check; the engine has eight times as much."""
MAX_FAILURE_CHARS = 600
"""Longest message of a failure, such that a line is written in one piece, however its characters are
escaped."""
READ_BYTES = 1 << 16
TOO_LONG, TOO_LARGE, TOO_DEEP = (
    f"it takes more than {CPU_SECONDS:g} s to compile; make it simpler",
    f"it takes more than {MAX_MEMORY_BYTES >> 20} MiB to compile; make it smaller",
    "it cannot be compiled, most likely because it is nested too deeply; make it simpler",
)
_FAILURE_OF_SIGNAL: dict[int, str] = {
    signal.SIGPROF: TOO_LONG,
    signal.SIGABRT: TOO_LARGE,
    signal.SIGKILL: TOO_LARGE,
}


class CheckingProcess:
    """Process that forks for each grammar that it reads."""

    def __init__(self, tokenizer: LLTokenizer | None, vocab_size: int, broken: str) -> None:
        """Keep the tokenizer; `broken`: why there is none, "" = there is one."""
        self._tokenizer, self._vocab_size, self._broken = tokenizer, vocab_size, broken
        self._forks: dict[int, int] = {}
        """Id of the request, by process id of the fork."""

    def run(self) -> None:
        """Answer requests until the input ends."""
        wakeup_read, wakeup_write = os.pipe()
        for descriptor in (wakeup_read, wakeup_write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wakeup_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        pending = bytearray()
        while True:
            ready, _, _ = select.select([0, wakeup_read], [], [])
            if wakeup_read in ready:
                os.read(wakeup_read, 4096)
                self._reap()
            if 0 not in ready:
                continue
            data = os.read(0, READ_BYTES)
            if not data:
                return
            pending += data
            *lines, rest = pending.split(b"\n")
            pending = bytearray(rest)
            for line in lines:
                request = json.loads(line)
                self._begin(request["id"], request["grammar"])

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
        """Return why the grammar cannot be followed; "" = it can. Runs in the fork."""
        signal.set_wakeup_fd(-1)
        # A crash in native code is the answer to its client and does not belong in the log.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        bound_this_process()
        if self._tokenizer is None:
            return self._broken
        try:
            matcher = make_matcher(self._tokenizer, grammar)
            words = first_mask(matcher, self._vocab_size)
            failure = str(matcher.get_error()) or ("" if words.any() else "no token may come first")
            del matcher  # freeing a nested grammar is recursive, too
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
    """Limit the time, stack and memory of this process from now on."""
    if (sizes := Path("/proc/self/statm")).exists():
        limit = int(sizes.read_text().split()[0]) * resource.getpagesize() + MAX_MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    stack = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)


def answer(number: int, failure: str) -> None:
    """Write the answer to request `number`, one line."""
    os.write(1, json.dumps({"id": number, "failure": failure[:MAX_FAILURE_CHARS]}).encode() + b"\n")


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
