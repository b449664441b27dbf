"""Threads of the arithmetic on a CPU: how many, and how long they spin while they wait for each other.

OpenMP reads both once, when torch is loaded, so the engine process asks for them before. By itself it takes
every core and spins: beside one other busy process, or the API process, the thread that all others spin for
is the one that is not running.
"""

from collections.abc import MutableMapping

COUNT = "OMP_NUM_THREADS"
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""GNU's OpenMP, which torch brings, reads the first two, Intel's the first and the last."""
SPINS = 1000
"""Turns before a thread sleeps, some microseconds: enough between the parts of one operation."""


def set_up_threads(environment: MutableMapping[str, str], cores: int) -> None:
    """Choose what nobody has chosen. `cores`: those the process may keep busy; one is the API process's.

    What is set already stays: whoever starts the engine knows better.
    """
    environment.setdefault(COUNT, str(max(1, cores - 1)))
    if not any(name in environment for name in WAITING):
        environment["GOMP_SPINCOUNT"] = str(SPINS)
        environment["KMP_BLOCKTIME"] = "0"
