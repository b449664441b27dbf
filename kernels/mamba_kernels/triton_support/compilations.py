"""Counter of Triton compilations in this process. There should be none while serving: all requests wait."""

import logging
from typing import Any

from triton import knobs

log = logging.getLogger(__name__)


class Compilations:
    """Counts and logs the kernels compiled since its construction. One instance per process."""

    def __init__(self) -> None:
        self.count = 0
        before = knobs.runtime.jit_post_compile_hook

        def compiled(*arguments: Any, **named: Any) -> bool | None:
            self.count += 1
            kernel = getattr(named.get("fn"), "name", "a kernel")
            log.warning("Triton compiled %s while serving: it was not compiled at the start", kernel)
            return before(*arguments, **named) if before is not None else None

        knobs.runtime.jit_post_compile_hook = compiled
