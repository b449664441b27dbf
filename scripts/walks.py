"""Writes the lists of files that a request, a prompt, a reconcile and a setting pass, on the pages of walks.

`make docs` runs it; `--check` writes nothing and fails on drift, for tests. Nobody keeps these lists by hand:
each walk is taken for real, in a process of its own, and the modules of the product are listed in the order
in which one of their functions is entered first. The first sentence of a module's docstring stands beside it.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import difflib
import json
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
SOURCES = tuple(dict.fromkeys(path.partition("/")[0] for path in WHEEL["packages"]))
"""Folders that hold the packages of the product."""
SUPPORT = ROOT / "tests" / "support"
BEGIN, END = "<!-- begin: written by `make docs` -->", "<!-- end -->"
PAGES = ROOT / "docs" / "explanation"
BODY = {
    "model": "tiny", "messages": [{"role": "user", "content": "a1=b2 c3=d4 a1="}], "max_tokens": 2,
    "stream": True, "temperature": 0,
}  # fmt: skip


# --- the product's files ---


def files(*packages: str) -> list[str]:
    """Return the paths of the modules of the product, or those of `packages`, from the root."""
    return [
        path.relative_to(ROOT).as_posix()
        for source in SOURCES
        for path in sorted((ROOT / source).rglob("*.py"))
        if not packages or path.relative_to(ROOT / source).parts[0] in packages
    ]


def naming(word: str, *packages: str) -> set[str]:
    """Return the files with an identifier or a short string that contains `word`; prose does not count."""
    return {
        path
        for path in files(*packages)
        if word in (text := (ROOT / path).read_text()).lower()
        and any(word in name.lower() for name in identifiers(ast.parse(text)))
    }


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Yield names and strings of one word in a module."""
    for node in ast.walk(tree):
        for attribute in ("id", "attr", "arg", "name"):
            if isinstance(name := getattr(node, attribute, None), str):
                yield name
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield node.value


def line_of(path: str) -> str:
    """Return the path and the first sentence of the module's docstring."""
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text())) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    sentence = paragraph.partition(". ")[0].rstrip(".")
    return f"`{path}`: {sentence}" if sentence else f"`{path}`"


def numbered(paths: list[str]) -> list[str]:
    """Return the lines of an ordered list."""
    return [f"{number}. {line_of(path)}" for number, path in enumerate(paths, 1)]


def bulleted(paths: set[str]) -> list[str]:
    """Return the lines of a list without an order."""
    return [f"- {line_of(path)}" for path in sorted(paths)]


# --- recording ---


class Recorder:
    """Notes which modules of the product are entered, in the order of the first time.

    Threads and tasks that were there before the recording are not followed: they do other work.
    """

    def __init__(self) -> None:
        self.paths: dict[str, None] = {}
        self._of_code: dict[str, str] = {}
        self._others: set[asyncio.Task[Any]] = set()

    @contextmanager
    def recording(self, own: asyncio.Task[Any] | None = None) -> Iterator[None]:
        """Record inside the block. `own`: a task that is followed although it was there before."""
        try:
            self._others = asyncio.all_tasks() - {own}
        except RuntimeError:
            self._others = set()
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or frame.f_code.co_name == "<module>":
            return
        name = frame.f_code.co_filename
        path = self._of_code.get(name)
        if path is None:
            path = self._of_code[name] = product_path(name)
        if path and path not in self.paths and not self._is_other_work():
            self.paths[path] = None

    def _is_other_work(self) -> bool:
        if not self._others:
            return False
        try:
            return asyncio.current_task() in self._others
        except RuntimeError:
            return False


def product_path(name: str) -> str:
    """Return the path of a module of the product from the root; empty for any other file."""
    path = Path(name)
    if not path.is_relative_to(ROOT):
        return ""
    inside = path.relative_to(ROOT)
    return inside.as_posix() if inside.parts[0] in SOURCES else ""


# --- the walks ---


def through_the_gateway() -> list[str]:
    """Send one chat request through a real gateway that has two engines, in other threads, to choose from."""
    from mamba_gateway.process.server import serve
    from mamba_gateway.prompts import prompt_reader
    from mamba_gateway.settings import GatewaySettings

    recorder = Recorder()
    # A busy machine must not make the gateway route without the prompt.
    prompt_reader.READ_SECONDS = 60

    async def walk() -> None:
        with engine_api() as one, engine_api() as other:
            ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            stop = asyncio.Event()
            settings = GatewaySettings(backend=(one, other), port=0, probe_interval=60)
            gateway = asyncio.create_task(serve(settings, ready.set_result, stop=stop))
            url = await ready
            await until_ready(url)
            for engine in (one, other):
                # Its threads are there then, and not followed.
                assert b"data: [DONE]" in await exchange(engine, "POST", "/v1/chat/completions", BODY)
            with recorder.recording(asyncio.current_task()):
                answer = await exchange(url, "POST", "/v1/chat/completions", BODY)
            assert b"data: [DONE]" in answer, answer
            stop.set()
            await gateway

    asyncio.run(walk())
    return list(recorder.paths)


async def until_ready(url: str) -> None:
    """Wait until the gateway knows its engines and their tokenizer."""
    for _ in range(1200):
        if b" 200 " in await exchange(url, "GET", "/readyz"):
            return
        await asyncio.sleep(0.05)
    raise TimeoutError("the gateway does not get ready")


async def exchange(url: str, method: str, path: str, body: Any = None) -> bytes:
    """Send one request on a connection of its own, and return all that comes back."""
    host, _, port = url.removeprefix("http://").rstrip("/").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode() if body is not None else b""
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    answer = await reader.read()
    writer.close()
    return answer


@contextmanager
def engine_api() -> Iterator[str]:
    """Serve the API of an engine that writes two tokens, in a thread of its own; the block gets its URL."""
    started = threading.Event()
    addresses: list[str] = []
    ends: list[Callable[[], None]] = []

    async def serve() -> None:
        from scripted_engine import Api
        from served_app import served
        from tiny_recall import BUILTIN

        api = Api()
        api.serving.text_files = BUILTIN
        writing(api)
        end = asyncio.Event()
        loop = asyncio.get_running_loop()
        ends.append(lambda: loop.call_soon_threadsafe(end.set) and None)
        async with served(api.app) as url:
            addresses.append(url)
            started.set()
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    started.wait()
    try:
        yield addresses[0]
    finally:
        ends[0]()
        thread.join()


def writing(api: Any) -> None:
    """Let the scripted engine answer each request with two tokens."""
    from mamba_server import wire

    def react(message: wire.ToEngine) -> None:
        if isinstance(message, wire.AddRequest):
            place = len(api.engine.requests) - 1
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: api.engine.delta("ab", of=place, finish_reason="length"))

    api.engine.process.react = react


def through_an_engine() -> list[str]:
    """Send one chat request through an engine's API, and the message that comes out through an engine."""
    from mamba_server.wire import AddRequest
    from scripted_engine import Api
    from served_app import served

    recorder = Recorder()
    messages: list[AddRequest] = []

    async def walk() -> None:
        api = Api()
        writing(api)
        async with served(api.app) as url:
            with recorder.recording(asyncio.current_task()):
                answer = await exchange(url, "POST", "/v1/chat/completions", BODY)
            assert b"data: [DONE]" in answer, answer
        messages.extend(api.engine.requests)

    asyncio.run(walk())
    run_engine(recorder, messages)
    return list(recorder.paths)


def run_engine(recorder: Recorder, messages: list[Any]) -> None:
    """Let a real engine answer the messages of an API process."""
    from engines import make_engine
    from mamba_server.engine.admin import AdminCalls
    from mamba_server.engine.engine_loop import EngineLoop
    from mamba_server.engine.grammar_compiler import GrammarCompiler
    from mamba_server.wire import Outputs, Ready, Shutdown
    from tiny_recall import BUILTIN

    engine = make_engine(BUILTIN, overlap=False)

    class Port:
        """Hands out all messages at once, and the end when the engine is idle."""

        def __init__(self) -> None:
            self.messages = list(messages)
            self.sent: list[Any] = []

        def send(self, message: Any) -> None:
            self.sent.append(message)

        def receive(self, timeout: float) -> list[Any]:
            waiting, self.messages = self.messages, []
            return waiting or ([Shutdown()] if engine.core.idle else [])

    port = Port()
    grammars = GrammarCompiler(engine.directory, engine.model.vocab_size, engine.model.eos_token_ids)
    loop = EngineLoop(engine.core, AdminCalls(engine.core, {}), port, grammars=grammars, clock=lambda: 0.0)
    with recorder.recording():
        loop.run(Ready(engine.model.vocab_size, 128, (), {}))
    engine.stream.close()
    assert any(isinstance(message, Outputs) for message in port.sent)


def through_a_reconcile() -> list[str]:
    """Reconcile one new MambaDeployment against an API server in memory."""
    recorder = Recorder()
    reconcile(recorder)
    return list(recorder.paths)


def reconcile(recorder: Recorder, **spec: Any) -> str:
    """Reconcile one new MambaDeployment, and return the settings document of its engines."""
    from fake_cluster import FakeCluster
    from mamba_operator.objects.manifest import Key
    from mamba_operator.process.metrics import OperatorMetrics
    from mamba_operator.reconcile import PassSettings, Reconciler, Runtime
    from operator_objects import NOW, TOKEN, fitting_owner

    cluster = FakeCluster(fitting_owner(**spec))
    reconciler = Reconciler(
        cluster, OperatorMetrics(), PassSettings("operator", resync=lambda: 300.0),
        runtime=Runtime(now=lambda: NOW, new_token=lambda: TOKEN),
    )  # fmt: skip

    async def walk() -> None:
        with recorder.recording(asyncio.current_task()):
            await reconciler(Key("models", "nano"))

    asyncio.run(walk())
    config = cluster.find("ConfigMap", "nano-engine")
    assert config is not None
    document: str = config["data"]["engine.json"]
    return document


def of_a_setting() -> list[str]:
    """Take `stateCache.strategy` through a reconcile, and from the document of a pod to an engine."""
    from mamba_cli.settings_options import read_document
    from mamba_settings.engine_settings import EngineSettings

    recorder = Recorder()
    document = reconcile(recorder, stateCache={"strategy": "ExtraBuffer"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "engine.json"
        path.write_text(document)
        with recorder.recording():
            settings = read_document(path, set(EngineSettings.model_fields))
    assert settings["strategy"] == "ExtraBuffer"
    boot_engine(recorder, settings["strategy"])
    return list(recorder.paths)


def boot_engine(recorder: Recorder, strategy: str) -> None:
    """Boot an engine with this strategy, and let it answer one request."""
    from engines import greedy, make_engine, run
    from tiny_recall import BUILTIN

    with recorder.recording():
        engine = make_engine(BUILTIN, overlap=False, strategy=strategy)
        run(engine, [greedy("a", [1, 2, 3], 2)])
    engine.stream.close()


# --- the pages ---


def by_package(name: str, heading: str) -> Callable[[list[str]], list[str]]:
    """Return a function that writes two lists: the files of one package, and those of all others."""

    def lists(paths: list[str]) -> list[str]:
        own = [path for path in paths if f"/{name}/" in path]
        return [
            f"## {heading}", "", *numbered(own), "",
            "## In the packages below", "", *numbered([path for path in paths if path not in own]),
        ]  # fmt: skip

    return lists


def prompt_page(paths: list[str]) -> list[str]:
    """Return the lists of the page about a prompt's tokens."""
    handling = naming("token_ids", "mamba_text", "mamba_server", "mamba_gateway", "mamba_prefix")
    first = next(place for place, path in enumerate(paths) if path in handling)
    return [
        "## As bytes and as text", "", *numbered(paths[:first]), "",
        "## As ids", "", *numbered([path for path in paths if path in handling]), "",
        "## Beside the way", "",
        "Other files that name `token_ids`: this request did not pass them.", "",
        *bulleted(handling - set(paths)),
    ]  # fmt: skip


def strategy_page(paths: list[str]) -> list[str]:
    """Return the lists of the page about a setting's way."""
    handling = naming("strategy")
    return [
        "## The way", "", *numbered([path for path in paths if path in handling]), "",
        "## Elsewhere", "", "Other files that name a strategy: where it is shown, changed or simulated,",
        "and where the word is that of a Kubernetes Deployment.", "", *bulleted(handling - set(paths)),
    ]  # fmt: skip


WALKS: dict[str, tuple[Callable[[], list[str]], Callable[[list[str]], list[str]]]] = {
    "walk-of-a-request.md": (through_the_gateway, by_package("mamba_gateway", "In the gateway")),
    "walk-of-a-prompt.md": (through_an_engine, prompt_page),
    "walk-of-a-reconcile.md": (through_a_reconcile, by_package("mamba_operator", "In the operator")),
    "walk-of-a-strategy.md": (of_a_setting, strategy_page),
}


def recorded(page: str) -> list[str]:
    """Take one walk in a fresh process, where nothing is cached, and return the files that it passes."""
    command = [sys.executable, __file__, "--record", page]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the walk for {page} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    paths: list[str] = json.loads(done.stdout.splitlines()[-1])
    return paths


def written(page: str) -> str:
    """Return the page with what stands between its markers replaced."""
    head, _, rest = (PAGES / page).read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    return "\n".join([f"{head}{BEGIN}", "", *WALKS[page][1](recorded(page)), "", f"{END}{tail}"])


def main() -> int:
    """Write the pages; with --check, return 1 when a page is out of date."""
    parser = argparse.ArgumentParser(description="Write the lists of files on the pages of walks.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is out of date")
    parser.add_argument("--record", help="take one walk in this process and print its files")
    parser.add_argument("pages", nargs="*", help="names of pages; none = all")
    options = parser.parse_args()
    if options.record:
        sys.path.append(str(SUPPORT))
        print(json.dumps(WALKS[options.record][0]()))
        return 0
    failed = False
    for page in options.pages or WALKS:
        old, new = (PAGES / page).read_text(), written(page)
        if old == new:
            continue
        if options.check:
            failed = True
            print(f"docs/explanation/{page} is out of date: run `make docs`", file=sys.stderr)
            print(*list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm=""))[:30], sep="\n")
        else:
            (PAGES / page).write_text(new)
            print(f"wrote docs/explanation/{page}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
