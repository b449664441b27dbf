"""Products of the matrices of a 263M model by the C++ kernels and by ggml, in turns on the same cores.

    cc -O2 benchmarks/cpu_products_ggml.c -o products \\
      -I TREE/ggml/include -L BUILD -lggml -lggml-base -lggml-cpu
    python -m benchmarks.cpu_products --ggml ./products --threads 1

TREE is a source tree of llama.cpp, BUILD the folder with the libraries built from it. Without --ggml only the
C++ kernels are measured. Prints medians in milliseconds and the time of `q4_0` over that of `int4`; --result
writes the raw numbers.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

ROWS = (1, 8, 512)
OURS = ("bf16", "int8", "int4")
THEIRS = ("q8_0", "q4_0")


def main() -> None:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ggml", type=Path, help="program compiled from cpu_products_ggml.c")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--result", type=Path, help="JSON file for the raw numbers")
    options = parser.parse_args()
    cores = ",".join(map(str, range(options.threads)))
    commands = {"ours": [sys.executable, "-m", "benchmarks.cpu_products_ours", str(options.threads)]}
    ways = [("ours", kind) for kind in OURS]
    if options.ggml is not None:
        commands["ggml"] = [str(options.ggml.resolve()), str(options.threads)]
        ways += [("ggml", kind) for kind in THEIRS]
    programs = {
        name: subprocess.Popen(
            ["taskset", "-c", cores, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name, command in commands.items()
    }

    def asked(name: str, line: str) -> list[float]:
        stdin, stdout = programs[name].stdin, programs[name].stdout
        assert stdin is not None
        assert stdout is not None
        if line:
            print(line, file=stdin, flush=True)
        answer = stdout.readline()
        return [float(number) for number in answer.split()] if line else []

    for name in programs:
        asked(name, "")  # until its weights are packed
    times: dict[int, dict[str, list[list[float]]]] = {rows: {kind: [] for _, kind in ways} for rows in ROWS}
    for number in range(options.rounds):
        for rows in ROWS:
            if rows > 100 and number % 3:
                continue  # a third of the rounds is enough for products that take long
            for name, kind in ways if number % 2 == 0 else ways[::-1]:
                times[rows][kind].append(asked(name, f"{kind} {rows}"))
    for program in programs.values():
        program.communicate()
    for rows, kinds in times.items():
        words = [f"{kind} {1e3 * median(wall for _, wall in each):.2f}" for kind, each in kinds.items()]
        if "q4_0" in kinds:
            pairs = zip(kinds["q4_0"], kinds["int4"], strict=True)
            ratios = [[theirs[at] / ours[at] for at in (0, 1)] for theirs, ours in pairs]
            words.append(f"q4_0/int4 {median(ratio[0] for ratio in ratios):.2f} of processor time,")
            words.append(f"{median(ratio[1] for ratio in ratios):.2f} of wall time")
        print(f"{rows} rows, ms:", *words)
    if options.result is not None:
        document = {"threads": options.threads, "columns": ["processor s", "wall s"], "rows": times}
        options.result.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
