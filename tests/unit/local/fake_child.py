"""A child for tests of local mode: speaks just enough HTTP to pass for an engine or a gateway.

`FAKE_ENGINE` / `FAKE_GATEWAY` hold words: load=SECONDS exit=CODE crash=SECONDS deaf (ignores SIGTERM)
finish=SECONDS (needs that long after SIGTERM) chat=STATUS (of every answer to a chat) plain (no chat
template). SIGUSR1 crashes it. Every start and end is a line in the file `FAKE_JOURNAL`; while that name with
`.lapse` is a file, an engine is not ready for the reason in it.
"""

import itertools
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

kind, rest = sys.argv[1], sys.argv[2:]
options = {key: value for key, value in itertools.pairwise(rest) if key.startswith("--")}
if "--config" in options:
    with open(options["--config"]) as file:
        document = json.load(file)
    options |= {f"--{key.replace('_', '-')}": value for key, value in document.items()}
words = dict(
    word.partition("=")[::2]
    for word in os.environ.get(f"FAKE_{kind.upper().replace('SERVE', 'ENGINE')}", "").split()
)
born = time.monotonic()
seen = {"requests": 0}
lapse = Path(os.environ["FAKE_JOURNAL"] + ".lapse")


def journal(what: str) -> None:
    with open(os.environ["FAKE_JOURNAL"], "a") as file:
        file.write(f"{kind} {what} {os.getpid()}\n")


def backends() -> list[str]:
    if "--models-file" not in options:
        return [options["--backend"]]
    models = json.loads(Path(options["--models-file"]).read_text())["models"]
    return [url for model in models for url in model["settings"]["backend"]]


def readiness_line(backend: str) -> str:
    try:
        with urlopen(backend + "/readyz", timeout=1) as response:
            ready = int(response.status == 200)
    except OSError:
        ready = 0
    engine = backend.removeprefix("http://")
    return f'mambaserve_gateway_endpoint_ready{{endpoint="{engine}"}} {ready}.0\n'


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: object) -> None:
        self.answer_text(status, json.dumps(body))

    def answer_text(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        load = float(words.get("load", 0))
        done = time.monotonic() - born
        if kind == "gateway":
            self.answer_text(200, "".join(map(readiness_line, backends())))
        elif done < load:
            self.answer(503, {"status": "loading", "stage": "weights", "done": int(done * 100), "total": 100})
        elif lapse.exists():
            self.answer(503, {"status": "loading", "stage": "start", "reason": lapse.read_text()})
        else:
            self.answer(200, {"status": "ready", "stage": None})

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        journal("strategy " + body)
        self.answer(200, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chat = self.path.endswith("/chat/completions")
        if chat and "plain" in words:
            self.answer(400, {"error": {"message": "no template", "code": "no_chat_template"}})
            return
        if body["max_tokens"] > 1_000_000:
            self.answer(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})
            return
        if not chat:
            body["messages"] = [{"content": body["prompt"]}]
        prompt = sum(len(message["content"].split()) for message in body["messages"])
        cached = 40 if seen["requests"] else 0
        seen["requests"] += 1
        self.answer(int(words.get("chat", 200)), {
            "choices": [{"message": {"content": "green"}} if chat else {"text": "green"}],
            "usage": {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}},
        })  # fmt: skip


def end(*_: object) -> None:
    time.sleep(float(words.get("finish", 0)))
    journal("drained")
    os._exit(0)


def crash(*_: object) -> None:
    print("last words", flush=True)
    os._exit(17)


signal.signal(signal.SIGUSR1, crash)
journal("started")
journal(f"runs={options.get('--strategy')}")
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in words else end)
if "exit" in words:
    print(f"fake {kind}: cannot go on", flush=True)
    sys.exit(int(words["exit"]))
if "crash" in words:
    threading.Timer(float(words["crash"]), lambda: os._exit(17)).start()
if kind == "serve":
    admin = ThreadingHTTPServer(("127.0.0.1", int(options["--admin-port"])), Handler)
    threading.Thread(target=admin.serve_forever, daemon=True).start()
ThreadingHTTPServer(("127.0.0.1", int(options["--port"])), Handler).serve_forever()
