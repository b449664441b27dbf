"""Builds what the test clusters run, once per content of its sources, and prints where it is.

The tests build what they need by themselves; calling `python tests/cluster/build.py` first only moves the
minutes it takes.
"""

import sys

from testcluster.build import ensure
from testcluster.errors import ClusterError


def main() -> int:
    try:
        print(ensure())
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
