"""The most memory that torch's operations hold at once, their temporaries included."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the bytes allocated on the CPU beyond what was there before, at their most."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    held = most = 0
    results = seen.profiler.kineto_results
    assert results is not None
    for event in results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most
