"""Runs of `mambaserve` that share the imports, in any environment.

`python -P forked_commands.py MAMBASERVE FOLDER` reads the arguments of each run from its standard input, as a
list of lists. Each run is a fork of this process and leaves what it prints in FOLDER, as `0.out` and `0.err`
and so on. The exit codes are printed as a list. A package that the environment lacks is missing in a fork as
it is in a process that starts anew.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import sys
import traceback
from typing import NoReturn

AT_ONCE = 2
ALSO_IMPORTED = ("mamba_api.v1alpha1.documents", "mamba_planner", "mamba_settings.engine_settings")
"""What the commands import inside functions, most of them."""


def import_commands() -> None:
    """Import the modules of all commands; they take most of the time of a command."""
    from mamba_cli import main

    for name in main.COMMANDS:
        importlib.import_module(f"mamba_cli.commands.{main._MODULE_OF.get(name, name)}")
    for name in ALSO_IMPORTED:
        importlib.import_module(name)
    gc.freeze()


def become(mambaserve: str, arguments: list[str], output: str) -> NoReturn:
    """Be one run of the command; to free in order what was imported takes longer than most of them."""
    for target, path in ((0, os.devnull), (1, f"{output}.out"), (2, f"{output}.err")):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), target)
    sys.argv = [mambaserve, *arguments]
    code: object = 1
    try:
        runpy.run_path(mambaserve, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else 1)


def run_all(mambaserve: str, calls: list[list[str]], folder: str) -> list[int]:
    """Run the command with each of these arguments, and return the exit codes."""
    running: dict[int, int] = {}
    codes: dict[int, int] = {}

    def wait() -> None:
        process, status = os.wait()
        codes[running.pop(process)] = os.waitstatus_to_exitcode(status)

    for number, arguments in enumerate(calls):
        if len(running) == AT_ONCE:
            wait()
        process = os.fork()
        if not process:
            become(mambaserve, arguments, f"{folder}/{number}")
        running[process] = number
    while running:
        wait()
    return [codes[number] for number in sorted(codes)]


if __name__ == "__main__":
    import_commands()
    json.dump(run_all(sys.argv[1], json.load(sys.stdin), sys.argv[2]), sys.stdout)
