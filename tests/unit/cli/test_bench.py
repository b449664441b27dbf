"""`mambaserve bench`: what it refuses before it sends anything, and that no run loses its numbers."""

import json
import math
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar
from xml.etree import ElementTree

import pytest

from mamba_cli import main

Bench = Callable[..., tuple[int, str, str]]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,3,1\n"


def _alike(one: list[int], other: list[int]) -> int:
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


class Handler(BaseHTTPRequestHandler):
    seen: ClassVar[list[list[int]]] = []
    """Prompts that this server has in its cache, as one that keeps everything would."""
    most: ClassVar[float] = math.inf
    """Number of prompts after which the server answers no more."""

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer(b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chat = self.path == "/v1/chat/completions"
        prompt = list(json.dumps(body["messages"]).encode()) if chat else body["prompt"]
        if len(self.seen) >= self.most:
            self.send_error(503)
            return
        cached = max((_alike(prompt, other) for other in self.seen), default=0)
        self.seen.append(prompt)
        usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": cached}}
        said = {"delta": {"content": "x"}} if chat else {"text": "x"}
        event = json.dumps({"choices": [{**said, "finish_reason": "stop"}], "usage": usage})
        self.answer(f"data: {event}\n\ndata: [DONE]\n\n".encode())


@pytest.fixture
def url() -> Iterator[str]:
    Handler.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Bench:
    """Run `mambaserve bench ARGUMENTS` in an empty directory: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mambaserve", "bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.run()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def test_a_report_that_cannot_be_written_is_shown_all_the_same(bench: Bench, url: str) -> None:
    code, out, err = bench("serve", url, "--requests", "2", "--output", "json", "--result", "gone/r.json")
    assert code == 1
    assert json.loads(out)["requests"]["ok"] == 2
    assert "error: cannot write the file: " in err
    assert "gone/r.json" in err


def test_a_report_on_standard_output_leaves_no_file_that_nobody_asked_for(
    bench: Bench, url: str, tmp_path: Path
) -> None:
    code, out, err = bench("serve", url, "--requests", "1", "--output", "json")
    assert (code, json.loads(out)["requests"]["ok"]) == (0, 1)
    assert "written to" not in err
    assert list(tmp_path.iterdir()) == []
    code, _, err = bench("serve", url, "--requests", "1")
    assert code == 0
    (file,) = tmp_path.iterdir()
    assert f"written to {file.name}" in err


def test_the_name_of_the_result_is_said_as_it_is(bench: Bench, url: str, tmp_path: Path) -> None:
    code, _, err = bench("serve", url, "--requests", "1", "--result", "run[red].json")
    assert code == 0
    assert "written to run[red].json" in err
    assert (tmp_path / "run[red].json").is_file()


def test_the_report_notes_the_load_without_the_key_and_the_place(bench: Bench, url: str) -> None:
    code, out, _ = bench("serve", url, "--requests", "1", "--api-key", "s3cret", "--output", "json")
    assert code == 0
    assert "s3cret" not in out
    load = json.loads(out)["load"]
    assert (load["requests"], load["concurrency"], load["input_tokens"]) == (1, 8, 512)
    assert not {"api_key", "result", "output", "url"} & set(load)


@pytest.mark.parametrize("shared", ["0", "0.5"])
def test_a_run_says_when_an_earlier_one_has_left_its_prompts_in_the_cache(
    bench: Bench, url: str, shared: str
) -> None:
    load = (
        "serve",
        url,
        "--requests",
        "6",
        "--concurrency",
        "1",
        "--shared-prefix",
        shared,
        "--output",
        "json",
    )
    _, out, err = bench(*load)
    assert "cache before" not in err
    assert json.loads(out)["tokens"]["cached_before"] == 0
    _, out, err = bench(*load)
    tokens = json.loads(out)["tokens"]
    assert tokens["cached_before"] == pytest.approx(tokens["prompt"] * (1 - float(shared) * 5 / 6), rel=0.07)
    assert "were in the server's cache before this run" in err
    assert "--seed" in err
    _, out, err = bench(*load, "--seed", "1")
    assert (json.loads(out)["tokens"]["cached_before"], "cache before" in err) == (0, False)


def test_a_trace_without_requests_is_a_report_of_nothing(bench: Bench, url: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(AZURE.splitlines()[0])
    code, out, err = bench("trace", "t.csv", "--url", url, "--output", "json")
    assert code == 0, err
    assert json.loads(out)["requests"]["sent"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rate", "0"], "--rate: must be positive, not 0"),
        (["--rate", "nan"], "--rate: must be positive, not nan"),
        (["--rate", "1", "--concurrency", "1"], "--rate and --concurrency exclude each other"),
    ],
)
def test_a_load_that_is_none_is_refused(bench: Bench, arguments: list[str], said: str) -> None:
    code, out, err = bench("serve", "http://127.0.0.1:9", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {said}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "t.csv: No such file or directory"),
        (b"", "t.csv: line 1: the file is empty"),
        (b"\xff\xfeT\x00", "t.csv: 'utf-8' codec can't decode"),
        (b"a,b,c\n1,2,3\n", "t.csv: line 1: is neither the header"),
        (AZURE.encode() + b"2023-11-16 18:15:47,x,1\n", "t.csv: line 3: invalid literal for int()"),
    ],
)
def test_a_file_that_is_no_trace_is_named_with_its_line(
    bench: Bench, tmp_path: Path, content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "t.csv").write_bytes(content)
    code, out, err = bench("trace", "t.csv", "--url", "http://127.0.0.1:9")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {said}")


def test_a_directory_is_no_trace(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "t.csv").mkdir()
    code, _, err = bench("trace", "t.csv")
    assert (code, err) == (2, "error: t.csv: Is a directory\n")


@pytest.mark.parametrize("scale", ["0", "-1", "nan"])
def test_a_speed_that_is_none_is_refused_before_the_file_is_read(bench: Bench, scale: str) -> None:
    code, _, err = bench("trace", "gone.csv", "--time-scale", scale)
    assert code == 2
    assert err.startswith("error: --time-scale: must be positive")


def test_a_url_without_a_scheme_is_wrong_usage(bench: Bench) -> None:
    code, out, err = bench("serve", "localhost:8000", "--requests", "1")
    assert (code, out) == (2, "")
    assert err == "error: URL: 'localhost:8000' is not an http:// or https:// URL\n"


def test_a_sweep_measures_each_load_with_prompts_of_its_own_and_draws_them(
    bench: Bench, url: str, tmp_path: Path
) -> None:
    code, _, errors = bench(
        "sweep", url, "--concurrency", "4,1,2", "--requests", "6", "--input-tokens", "40",
        "--result", "sweep.json", "--plot", "sweep.svg",
    )  # fmt: skip
    assert code == 0
    document = json.loads((tmp_path / "sweep.json").read_text())
    assert [run["concurrency"] for run in document["runs"]] == [1, 2, 4]
    assert [run["requests"]["ok"] for run in document["runs"]] == [6, 6, 8]
    assert {run["tokens"]["cached_before"] for run in document["runs"]} == {0}
    assert "warning" not in errors
    drawing = ElementTree.fromstring((tmp_path / "sweep.svg").read_text())
    circles = drawing.findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) >= 3 * 3, "a rate and two latencies of each load"


def test_a_sweep_keeps_the_runs_before_the_load_at_which_the_server_fails(
    bench: Bench, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "most", 8)
    code, table, errors = bench(
        "sweep", url, "--concurrency", "1,2,4,8", "--requests", "4", "--input-tokens", "4",
        "--result", "sweep.json", "--plot", "sweep.svg",
    )  # fmt: skip
    assert code == 1
    assert "concurrency 4: no request succeeded" in errors
    assert "TTFT p50" in table
    document = json.loads((tmp_path / "sweep.json").read_text())
    assert [run["concurrency"] for run in document["runs"]] == [1, 2]
    assert document["failure"]["concurrency"] == 4
    assert (tmp_path / "sweep.svg").exists()


def test_a_sweep_of_rates_sends_at_these_rates(bench: Bench, url: str) -> None:
    code, said, _ = bench(
        "sweep", url, "--rate", "50,100", "--requests", "4", "--input-tokens", "4", "--output", "json"
    )
    assert code == 0
    document = json.loads(said)
    assert (document["sweep"], [run["rate"] for run in document["runs"]]) == ("rate", [50, 100])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rate", "1", "--concurrency", "1"), "exclude each other"),
        (("--concurrency", "1,two"), "--concurrency: must be up to 64 positive whole numbers"),
        (("--concurrency", "1.5"), "--concurrency: must be up to 64 positive whole numbers"),
        (("--rate", "0"), "--rate: must be up to 64 positive numbers"),
        (("--plot", "nowhere/sweep.svg"), "--plot: there is no directory nowhere"),
    ],
)
def test_a_sweep_that_is_none_is_refused_before_anything_is_sent(
    bench: Bench, url: str, arguments: tuple[str, ...], said: str
) -> None:
    code, _, errors = bench("sweep", url, *arguments)
    assert code == 2
    assert said in errors
    assert not Handler.seen


def test_a_dataset_is_sent_to_the_chat_api_and_a_second_run_is_warned_of(
    bench: Bench, url: str, tmp_path: Path
) -> None:
    lines = [
        {"messages": [{"role": "user", "content": f"{number} is what I ask of you"}]} for number in range(9)
    ]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, lines)))
    code, _, errors = bench("dataset", str(tmp_path / "asked.jsonl"), "--url", url, "--result", "one.json")
    report = json.loads((tmp_path / "one.json").read_text())
    assert (code, report["requests"]["ok"], report["load"]["file"]) == (0, 9, "asked.jsonl")
    assert report["latency_ms"]["ttft"] is not None
    assert "cache" not in errors
    _, output, errors = bench("dataset", str(tmp_path / "asked.jsonl"), "--url", url, "--limit", "4")
    assert "4 ok" in output
    assert "of the prompt tokens were in the server's cache before this run" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.jsonl",), "missing.jsonl: No such file or directory"),
        (("asked.jsonl", "--rate", "1", "--concurrency", "2"), "--rate and --concurrency exclude each other"),
        (("asked.jsonl", "--rate", "0"), "--rate: must be positive, not 0"),
        (("asked.jsonl", "--time-scale", "2"), "--time-scale acts on recorded timestamps only"),
        (("broken.jsonl",), "broken.jsonl: line 1: not JSON"),
    ],
)
def test_a_dataset_that_cannot_be_sent_is_refused(
    bench: Bench, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "asked.jsonl").write_text('{"messages": [{"role": "user", "content": "Why?"}]}')
    (tmp_path / "broken.jsonl").write_text("{")
    code, _, errors = bench("dataset", *arguments)
    assert code == 2
    assert message in errors
