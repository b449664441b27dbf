"""Builds what the test clusters run, once per content of its sources: `tests/cluster/build.py [TOOL…]`.

Without arguments every tool is built. The tests build what they need by themselves; calling this first
only moves the minutes it takes.
"""

import sys

from testcluster.build import TOOLS, ensure
from testcluster.errors import ClusterError


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in TOOLS]:
        print(f"error: no tool {', '.join(unknown)}; there are {', '.join(TOOLS)}", file=sys.stderr)
        return 2
    try:
        for name in names or list(TOOLS):
            print(ensure(TOOLS[name]))
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
