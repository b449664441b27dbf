"""`python -m mamba_server.engine`: the engine process. Started by the API process, never by hand.

It reports progress, readiness and fatal errors to its parent over the wire; logs go to standard error.
"""

import argparse
import ctypes
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

from mamba_server.engine.process_memory.cpu_threads import set_up_threads, threads_for
from mamba_server.engine.process_memory.garbage import without_searches
from mamba_server.host_cores import usable_cores
from mamba_settings.engine_settings import EngineSettings
from mamba_telemetry.logs import set_up_logs

if TYPE_CHECKING:
    from mamba_server.engine.engine_loop import EngineSockets

PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies: alone, an engine is of no use."""
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
    # A terminal's Ctrl-C goes to the whole group; the API process handles it by draining.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = EngineSettings.model_validate_json(options.settings)
    set_up_logs(level=settings.log_level, process="engine")

    cores = usable_cores()
    chooses_threads = set_up_threads(os.environ, cores)
    # This imports numpy, which starts threads while it is imported.
    from mamba_server.engine.engine_loop import EngineSockets, send_fatal

    port: EngineSockets | None = None
    try:
        # Before the sockets exist, because their threads write to memory at any time.
        with without_searches():
            _import_torch(settings)
        port = EngineSockets(options.to_engine, options.from_engine)
        return _serve(settings, port, cores if chooses_threads else None)
    except Exception as error:
        port = port or EngineSockets(options.to_engine, options.from_engine)
        exit_code = getattr(error, "exit_code", None)
        if exit_code is None:
            send_fatal(port, f"the engine failed: {type(error).__name__}: {error}", 1)
            raise
        send_fatal(port, str(error), exit_code)
        return int(exit_code)
    finally:
        if port is not None:
            port.close()


def _import_torch(settings: EngineSettings) -> None:
    """Import torch and the kernels; on a CPU, free the memory that this leaves before the weights are read.

    Raises NoDevice, UnknownKernels.
    """
    from mamba_kernels.cpu.library import has_to_be_built, library
    from mamba_server.engine.boot import pick_device
    from mamba_server.engine.process_memory.cold_memory import put_imports_aside
    from mamba_server.engine.process_memory.library_pages import give_back_libraries

    if pick_device(settings.device).type == "cpu":
        give_back_libraries()
        # Missing kernels are compiled by `boot`, which reports that; the next start has them.
        if not has_to_be_built():
            put_imports_aside(library())


def _serve(settings: EngineSettings, port: "EngineSockets", cores: int | None) -> int:
    """Boot the engine and serve.

    `cores`: cores to choose the number of threads from; None = as many threads as OpenMP was given.
    """
    from mamba_server.engine.adapter_calls import AdapterCalls
    from mamba_server.engine.admin import AdminCalls
    from mamba_server.engine.boot import boot, ready_plan, use_threads
    from mamba_server.engine.engine_loop import EngineLoop, report_progress
    from mamba_server.engine.grammar_compiler import GrammarCompiler
    from mamba_server.engine.process_memory.garbage import never_search_old_objects
    from mamba_server.engine.transfers.start import start_transfers
    from mamba_server.engine.transfers.transports import check_transport
    from mamba_server.wire import Ready

    check_transport(settings)
    engine = boot(settings, report_progress(port))
    endpoint = start_transfers(
        engine.core, settings, engine.stream, engine.memory, engine.state_layout, port.wake
    )
    if endpoint.warm_start is not None:
        endpoint.warm_start.run(report_progress(port))
    use_threads(engine, None if cores is None else threads_for(engine.plan.weights_bytes, cores))
    plan = ready_plan(engine)
    adapters = AdapterCalls(engine.core, engine.bank, port.wake)
    admin = AdminCalls(engine.core, plan, endpoint.sessions, endpoint.departure, adapters)
    grammars = GrammarCompiler(engine.directory, engine.model.vocab_size, engine.model.eos_token_ids)
    process = EngineLoop(
        engine.core,
        admin,
        port,
        device_counters=engine.device_counters,
        device_gauges=engine.device_gauges,
        grammars=grammars,
    )
    never_search_old_objects()
    is_clean = False
    try:
        process.run(
            Ready(
                vocab_size=engine.model.vocab_size,
                max_model_len=engine.plan.max_model_len,
                eos_token_ids=engine.model.eos_token_ids,
                plan=plan,
                fingerprint=engine.core.cache.settings.fingerprint,
                page_size=engine.core.cache.capacity.page_size,
                transfer_address=endpoint.address,
                incarnation=endpoint.incarnation,
                adapters=engine.adapters,
            )
        )
        is_clean = True
    finally:
        if engine.core.transfers is not None:
            # What an engine leaves that failed is not trusted.
            engine.core.transfers.close(save=is_clean)
        engine.stream.close()
    return 0


if __name__ == "__main__":
    code = main()
    # Skip the interpreter's own shutdown: it would read all paged-out memory again, only to free it.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
