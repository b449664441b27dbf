"""`python -m mamba_server.engine`: the engine process. Started by the API process, never by hand.

Tells its parent about progress, readiness and fatal errors over the wire; logs go to standard error.
"""

import argparse
import ctypes
import os
import signal
import sys

from mamba_planner.engine_settings import EngineSettings
from mamba_server.engine.cpu_threads import set_up_threads, threads_for
from mamba_server.engine.garbage import never_search_old_objects
from mamba_server.engine.process import EngineProcess, Port, Report, report_progress, say_fatal
from mamba_server.host_cores import usable_cores
from mamba_server.wire import Ready

PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """An engine without its API process serves nobody."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mamba_server.engine")
    parser.add_argument("--settings", required=True, help="EngineSettings as JSON")
    parser.add_argument("--to-engine", required=True)
    parser.add_argument("--from-engine", required=True)
    options = parser.parse_args()
    parent = os.getppid()
    _die_with_parent()
    if os.getppid() != parent:
        return 1
    # A terminal's Ctrl-C goes to the whole group; draining is the API process's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = EngineSettings.model_validate_json(options.settings)

    port = Port(options.to_engine, options.from_engine)
    try:
        return _serve(settings, port, report_progress(port))
    except Exception as error:
        exit_code = getattr(error, "exit_code", None)
        if exit_code is None:
            say_fatal(port, f"the engine failed: {type(error).__name__}: {error}", 1)
            raise
        say_fatal(port, str(error), exit_code)
        return int(exit_code)
    finally:
        port.close()


def _serve(settings: EngineSettings, port: Port, report: Report) -> int:
    cores = usable_cores()
    ours = set_up_threads(os.environ, cores)
    report("importing torch", 0, 1)
    from mamba_server.engine.admin import Admin
    from mamba_server.engine.boot import boot, pick_device, ready_plan, use_threads
    from mamba_server.engine.library_pages import give_back_libraries

    report("importing torch", 1, 1)
    if pick_device(settings.device).type == "cpu":
        # Before the weights come, so that they never stand beside them.
        give_back_libraries()
    engine = boot(settings, report)
    use_threads(engine, threads_for(engine.plan.weights_bytes, cores) if ours else None)
    shown = ready_plan(engine)
    admin = Admin(engine.core, shown)
    process = EngineProcess(engine.core, admin, port, device_counters=engine.device_counters)
    never_search_old_objects()
    try:
        process.run(
            Ready(
                vocab_size=engine.model.vocab_size,
                max_model_len=engine.plan.max_model_len,
                eos_token_ids=engine.model.eos_token_ids,
                plan=shown,
                fingerprint=engine.core.cache.tree.fingerprint,
                page_size=engine.core.cache.page_size,
            )
        )
    finally:
        engine.stream.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
