"""The steps of `engine_cpu_steps` by llama.cpp's own benchmark, asked for and answered in the same way.

Each is a process of its own, which loads the model and warms up first. It tells no processor time.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.engine_cpu_steps import CONTEXT
from benchmarks.gguf_checkpoint import write_gguf

DECODED = 8
"""Steps of a decode, over which it takes the mean."""
TRIES = 3
"""Attempts to read llama-bench's output. A thread writes the output, and the process does not wait for that
thread when it ends, so the last line may be lost. One prompt token is measured last to leave it time."""


def measure(program: Path, model: Path, threads: int, kind: str, count: int) -> dict[str, Any]:
    """Measure the seconds of one step."""
    prefill = kind == "prefill"
    sizes = {
        "npp": f"{count if prefill else CONTEXT - 1},1",
        "ntg": 1 if prefill else DECODED,
        "npl": 1 if prefill else count,
        "c": 32 * (CONTEXT + DECODED),
        "t": threads,
        "b": 512,
        "ub": 512,
    }
    command = [str(program), "-m", str(model), "--output-format", "jsonl"]
    for name, size in sizes.items():
        command += [f"-{name}", str(size)]
    for _ in range(TRIES):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        result = next((json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")), None)
        if result is not None:
            return {"wall": result["t_pp"] if prefill else result["t_tg"] / DECODED}
    raise SystemExit(f"{' '.join(command)} measured nothing: {(done.stdout + done.stderr)[-500:]}")


def main() -> None:
    checkpoint, tree, kind, threads = sys.argv[1:]
    model = write_gguf(Path(checkpoint), Path(tree), kind)
    program = Path(tree, "build", "bin", "llama-batched-bench")
    print(f"llama.cpp {kind}", flush=True)
    for line in sys.stdin:
        step, count = line.split()
        print(json.dumps(measure(program, model, int(threads), step, int(count))), flush=True)


if __name__ == "__main__":
    main()
