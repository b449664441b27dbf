"""Objects that the operator keeps are not walked through again and again."""

import subprocess
import sys

KEEPING = """
import gc
from mamba_operator.process.garbage import collect_seldom

collect_seldom()
before = gc.get_stats()[2]["collections"]
kept = [{"metadata": {}} for _ in range(200_000)]
print(gc.get_stats()[2]["collections"] - before)
"""


def test_hundreds_of_thousands_of_kept_objects_cost_no_full_collection() -> None:
    done = subprocess.run([sys.executable, "-c", KEEPING], capture_output=True, text=True, check=True)

    assert int(done.stdout) == 0
