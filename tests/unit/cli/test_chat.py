"""`mambaserve chat`: one answer or a conversation, what was resumed, refusals in words, Ctrl-C."""

import asyncio
import contextlib
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import aiohttp
import pytest
from rich.console import Console

from mamba_cli import main
from mamba_cli.chat.client import ChatClient
from mamba_cli.chat.conversation import Conversation

Run = Callable[..., tuple[int, str, str]]
USAGE = {"prompt_tokens": 40, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 32}}


@dataclass
class Endpoint:
    """Answers of the server, and the requests that it got."""

    url: str = ""
    pieces: tuple[str, ...] = ("Hel", "lo")
    thoughts: tuple[str, ...] = ()
    template: bool = True
    key: str = ""
    tail: bytes = b"data: [DONE]\n\n"
    status: int = 200
    models: tuple[str, ...] = ("m", "n")
    page: tuple[int, bytes] | None = None
    held: Event | None = None
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


def make_handler(endpoint: Endpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, body: object) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

        def refuse(self, status: int, code: str) -> None:
            self.answer(status, {"error": {"message": f"about {code}", "code": code}})

        def allowed(self) -> bool:
            return not endpoint.key or self.headers.get("Authorization") == f"Bearer {endpoint.key}"

        def do_GET(self) -> None:
            if not self.allowed():
                self.refuse(401, "invalid_api_key")
            elif endpoint.page is not None:
                self.answer(*endpoint.page)
            else:
                self.answer(200, {"data": [{"id": name} for name in endpoint.models]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            endpoint.asked.append((self.path, body))
            chat = self.path == "/v1/chat/completions"
            if endpoint.status != 200:
                self.refuse(endpoint.status, "overloaded")
            elif chat and not endpoint.template:
                self.refuse(400, "no_chat_template")
            else:
                self.send_response(200)
                self.end_headers()
                held = endpoint.held  # looked at before a client can change its mind
                for thought in endpoint.thoughts:
                    self.event({"choices": [{"delta": {"reasoning_content": thought}}]})
                for index, piece in enumerate(endpoint.pieces):
                    self.event({"choices": [{"delta": {"content": piece}} if chat else {"text": piece}]})
                    if not index and held is not None:
                        held.wait(20)
                self.event({"choices": [], "usage": USAGE})
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(endpoint.tail)

        def event(self, body: object) -> None:
            with contextlib.suppress(ConnectionError):  # the client may have left: that is what is tested
                self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")

    return Handler


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    found = Endpoint()
    server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(found))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        monkeypatch.setattr(sys, "argv", ["mambaserve", "chat", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.run()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def test_a_message_is_answered_on_standard_output_and_what_was_resumed_beside_it(
    chat: Run, endpoint: Endpoint
) -> None:
    code, out, err = chat(f"{endpoint.url}/v1/", "Who?", "--temperature", "0", "--system", "Be brief")
    assert (code, out) == (0, "Hello\n")
    assert "32 of 40 prompt tokens resumed, 2 generated" in err
    [(path, body)] = endpoint.asked
    assert path == "/v1/chat/completions"
    assert [each["content"] for each in body["messages"]] == ["Be brief", "Who?"]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0, 512)


def test_what_the_model_thinks_is_shown_beside_its_answer(chat: Run, endpoint: Endpoint) -> None:
    endpoint.thoughts = ("Who [am]", " I?")
    code, out, err = chat(endpoint.url, "Who?")
    assert (code, out) == (0, "Hello\n")
    assert err.startswith("Who [am] I?\n[32 of 40")


def test_without_a_terminal_the_message_comes_from_standard_input(
    chat: Run, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAMBASERVE_URL", endpoint.url)
    assert chat("--model", "n", stdin="Who?\n")[:2] == (0, "Hello\n")
    assert endpoint.asked[0][1]["model"] == "n"
    code, _, err = chat(stdin=" \n")
    assert code == 2
    assert "no message" in err


def test_a_model_without_a_chat_template_gets_the_text(chat: Run, endpoint: Endpoint) -> None:
    endpoint.template = False
    assert chat(endpoint.url, "Once")[:2] == (0, "Hello\n")
    path, body = endpoint.asked[-1]
    assert (path, body["prompt"]) == ("/v1/completions", "Once")


def test_a_key_is_asked_for_in_words_and_taken_from_the_environment(
    chat: Run, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.key = "k"
    code, _, err = chat(endpoint.url, "Who?")
    assert code == 2
    assert "--api-key" in err
    monkeypatch.setenv("MAMBASERVE_API_KEY", "k")
    assert chat(endpoint.url, "Who?")[:2] == (0, "Hello\n")


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"status": 429}, 1, "answered 429: about overloaded"),
        ({"tail": b""}, 1, "broke off"),
        ({"tail": b'data: {"error": {"message": "lost"}}\n\n'}, 1, "broke off: lost"),
        ({"tail": b"data: no JSON\n\n"}, 1, "cannot be read"),
        ({"models": ()}, 1, "serves no model"),
        ({"page": (502, b"<html>Bad gateway</html>")}, 1, "answered 502 and is not an OpenAI-compatible"),
        ({"page": (200, b"<html>\xff</html>")}, 1, "answered 200 and is not an OpenAI-compatible"),
        ({"page": (200, b"[]")}, 1, "answered 200 and is not an OpenAI-compatible"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(
    chat: Run, endpoint: Endpoint, change: dict[str, Any], code: int, words: str
) -> None:
    for name, value in change.items():
        setattr(endpoint, name, value)
    ended, _, err = chat(endpoint.url, "Who?")
    assert ended == code
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_an_answer_that_cannot_be_written_is_no_trouble_of_the_connection(endpoint: Endpoint) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "mamba_cli", "chat", endpoint.url, "Who?"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (1, "error: standard output: No space left on device\n")


def test_nobody_there_and_no_url_are_said(chat: Run) -> None:
    code, _, err = chat("http://127.0.0.1:9", "Who?")
    assert code == 1
    assert "nothing answers at http://127.0.0.1:9" in err
    assert chat("http://", "Who?")[0] == 2
    assert chat("Who", "are", "you?")[0] == 2
    code, _, err = chat("localhost:9", "Who?")
    assert (code, err) == (2, "error: localhost:9 is not a URL: write http://localhost:9\n")


class Terminal:
    """Somebody who types `lines`; an exception among them is what the keys do."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self._lines = iter(lines)
        self.out, self.aside = io.StringIO(), io.StringIO()

    def read(self) -> str:
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line

    def talk(self, endpoint: Endpoint) -> Conversation:
        async def connect() -> ChatClient:
            return ChatClient(aiohttp.ClientSession(), endpoint.url, "m")

        with asyncio.Runner() as runner:
            client = runner.run(connect())
            console = Console(file=self.aside, width=200)
            conversation = Conversation(client, runner, self.out, console)
            try:
                conversation.talk(self.read)
            finally:
                runner.run(client.session.close())
        return conversation


def test_a_conversation_grows_with_each_turn_and_begins_anew_when_asked(endpoint: Endpoint) -> None:
    terminal = Terminal("one", "", "two", "/new", "three")
    terminal.talk(endpoint)
    sent = [[each["content"] for each in body["messages"]] for _, body in endpoint.asked]
    assert sent == [["one"], ["one", "Hello", "two"], ["three"]]
    assert terminal.out.getvalue() == "Hello\n" * 3
    assert terminal.aside.getvalue().count("32 of 40 prompt tokens resumed") == 3


def test_later_turns_bring_along_what_the_model_thought(endpoint: Endpoint) -> None:
    endpoint.thoughts = ("Hm.",)
    Terminal("one", "two").talk(endpoint)
    said = endpoint.asked[-1][1]["messages"][1]
    assert said == {"role": "assistant", "content": "Hello", "reasoning_content": "Hm."}


def test_a_turn_that_fails_costs_that_turn_alone(endpoint: Endpoint) -> None:
    endpoint.status = 503
    terminal = Terminal("one")
    conversation = terminal.talk(endpoint)
    assert "answered 503" in terminal.aside.getvalue()
    assert conversation.messages == []


def test_ctrl_c_stops_the_answer_and_not_the_program(endpoint: Endpoint) -> None:
    released = endpoint.held = Event()

    class Impatient(io.StringIO):
        def write(self, text: str) -> int:
            if endpoint.held is not None:
                endpoint.held = None
                signal.raise_signal(signal.SIGINT)
            return super().write(text)

    terminal = Terminal("one", KeyboardInterrupt, "two")
    terminal.out = Impatient()
    conversation = terminal.talk(endpoint)
    released.set()
    assert "[stopped]" in terminal.aside.getvalue()
    assert terminal.out.getvalue() == "HelHello\n"
    assert [each["content"] for each in conversation.messages] == ["two", "Hello"]
