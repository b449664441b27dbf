"""Virtual time for one test: sleeping costs nothing and the loop's clock starts at zero.

The pytest plugin of looptime is switched off: in plain tests it asks for an event loop that nobody closes.
"""

import functools
from collections.abc import Callable, Coroutine
from typing import Any

import looptime


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in a loop of its own whose clock jumps to the next timer."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        loop: Any = looptime.new_event_loop(start=0)
        try:
            loop.run_until_complete(test(*arguments, **named))
        finally:
            loop.close()

    return run
