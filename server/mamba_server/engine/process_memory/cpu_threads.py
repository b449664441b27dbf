"""Threads of the arithmetic on a CPU: their number, and how long they spin while they wait.

OpenMP reads both once, when torch is loaded, so the engine process sets them before. By default OpenMP takes
every core and spins: with one other busy process, or the API process, the thread for which all others spin is
the one that does not run.
"""

from collections.abc import MutableMapping

COUNT = "OMP_NUM_THREADS"
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables for waiting: GNU's OpenMP, which comes with torch, reads the first two, Intel's the first and the
last."""
NUMPY_COUNT = "OPENBLAS_NUM_THREADS"
"""Variable for the threads that numpy starts when it is imported; the engine multiplies nothing with
numpy."""
SMALL_WEIGHTS = 64 << 20
"""Bytes of weights below which an operation ends before a second thread has woken up."""


def set_up_threads(environment: MutableMapping[str, str], cores: int) -> bool:
    """Set the variables that are not set; return whether the engine chooses the number of threads.

    `cores`: cores that the process may keep busy. A variable that is set keeps its value.
    """
    environment.setdefault(NUMPY_COUNT, "1")
    if not any(name in environment for name in WAITING):
        environment["OMP_WAIT_POLICY"] = "passive"
        environment["KMP_BLOCKTIME"] = "0"
    if COUNT in environment:
        return False
    environment[COUNT] = str(cores)
    return True


def threads_for(weights_bytes: int, cores: int) -> int:
    """Return the number of threads that serves a model best: one for a small model, else the cores.

    Of more than two cores, one is left to the API process.
    """
    if weights_bytes < SMALL_WEIGHTS:
        return 1
    return cores - 1 if cores > 2 else cores
