"""Threads of the arithmetic on a CPU: how many, and how long they spin while they wait for each other.

OpenMP reads both once, when torch is loaded, so the engine process asks for them before. By itself it takes
every core and spins: beside one other busy process, or the API process, the thread that all others spin for
is the one that is not running.
"""

from collections.abc import MutableMapping

COUNT = "OMP_NUM_THREADS"
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""GNU's OpenMP, which torch brings, reads the first two, Intel's the first and the last."""
OF_NUMPY = "OPENBLAS_NUM_THREADS"
"""Threads that numpy starts when it is imported; the engine multiplies nothing by it."""
SMALL_WEIGHTS = 64 << 20
"""Bytes of weights below which an operation is over before a second thread has woken up."""


def set_up_threads(environment: MutableMapping[str, str], cores: int) -> bool:
    """Choose what nobody has chosen; whether the number of threads is left to us.

    cores: those the process may keep busy. What is set already stays: whoever starts the engine knows better.
    """
    environment.setdefault(OF_NUMPY, "1")
    if not any(name in environment for name in WAITING):
        environment["OMP_WAIT_POLICY"] = "passive"
        environment["KMP_BLOCKTIME"] = "0"
    if COUNT in environment:
        return False
    environment[COUNT] = str(cores)
    return True


def threads_for(weights_bytes: int, cores: int) -> int:
    """Threads that serve a model of that size best: one for a small model, else the cores.

    Of more than two cores one is left to the API process.
    """
    if weights_bytes < SMALL_WEIGHTS:
        return 1
    return cores - 1 if cores > 2 else cores
