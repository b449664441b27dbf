"""Whether this kernel has IPv6, for the tests that need it."""

from mamba_edge.listener import bound


def has_ipv6() -> bool:
    """Return whether ::1 is an address here."""
    try:
        bound("::1", 0).close()
    except OSError:
        return False
    return True
