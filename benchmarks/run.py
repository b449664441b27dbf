"""All benchmarks, one after the other: `python -m benchmarks.run [NAME …]`, or `make bench`.

Each benchmark is a module of this folder with a `main`; results go to benchmarks/results.
"""

import importlib
import sys
import time

BENCHMARKS = (
    "serve",
    "http_cpu",
    "transfer",
    "cache.hit_rate",
    "cache.policy_table",
    "cache.fragmentation",
    "cache.cpu_time",
    "cache.real_engine",
    "cache.plots",
)


def main(names: list[str]) -> int:
    """Run the named ones, or all. Returns 2 for a name that does not exist, 1 if one failed."""
    if unknown := [name for name in names if name not in BENCHMARKS]:
        print(f"no benchmark {', '.join(unknown)}; there is {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    failed = 0
    for name in names or BENCHMARKS:
        begin = time.monotonic()
        try:
            importlib.import_module(f"benchmarks.{name}").main([])
        except Exception as error:
            failed += 1
            print(f"{name}: failed: {error}", file=sys.stderr)
        print(f"{name}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
