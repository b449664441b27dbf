"""Conversations that leave one engine as files and go on in another, by the command line and over HTTP."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import mamba_server
from eventually import wait_until
from mamba_cli.local import running
from mamba_cli.sessions import session_list
from servers import Command, Server, call

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
WORDS = " ".join(f"word{number}" for number in range(60))


def model() -> Path:
    assert mamba_server.__file__ is not None
    return Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"


@contextmanager
def engine(*arguments: str) -> Iterator[Server]:
    with Server(model(), "--seed", "1", "--batch-invariant", *arguments) as server:
        yield server


@pytest.fixture(scope="module")
def first() -> Iterator[Server]:
    with engine("--arena-bytes", "16Mi") as server:
        yield server


@pytest.fixture(scope="module")
def second() -> Iterator[Server]:
    with engine("--arena-bytes", "16Mi") as server:
        yield server


def messages(mark: str) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": f"{mark} {WORDS}"},
        {"role": "assistant", "content": "yes"},
    ]


def ask(server: Server, mark: str) -> tuple[Any, int]:
    """Go on with a conversation; return the choices and the tokens that were resumed."""
    body = {
        "messages": [*messages(mark), {"role": "user", "content": "and now?"}],
        "max_tokens": 8, "temperature": 0, "logprobs": True,
    }  # fmt: skip
    status, answer = call(server.url + CHAT, body)
    assert status == 200, answer
    return answer["choices"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def command(*arguments: str | Path) -> tuple[int, str]:
    """Run `mambaserve session …`; return the exit code and everything that it printed."""
    with Command("session", *map(str, arguments)) as process:
        return process.wait(), process.output


def listed(folder: Path) -> dict[str, Any]:
    """Return the only session in a folder, as the command line lists it."""
    code, output = command("list", folder, "--output", "json")
    assert code == 0, output
    [document] = json.loads(output)
    return dict(document)


def saved(server: Server, folder: Path, mark: str) -> Path:
    """Save a conversation with the command line."""
    (folder / f"{mark}.json").write_text(json.dumps(messages(mark)))
    code, output = command("save", folder / f"{mark}.json", "--url", server.admin)
    assert code == 0, output
    return folder / f"{mark}.session"


def put(server: Server, body: bytes) -> tuple[int, Any]:
    request = urllib.request.Request(f"{server.admin}/admin/session", body, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_a_saved_conversation_goes_on_in_another_engine(
    first: Server, second: Server, tmp_path: Path
) -> None:
    file = saved(first, tmp_path, "alpha")
    document = listed(tmp_path)
    assert (document["file"], document["model"], document["damage"]) == (file.name, "tiny-recall", "")
    assert (file.stat().st_mode & 0o777, file.stat().st_size) == (0o600, document["bytes"])
    code, output = command("load", file, "--url", second.admin)
    assert code == 0, output
    choices, cached = ask(second, "alpha")
    assert cached == document["depth"] > 100
    assert choices == ask(first, "alpha")[0]
    # A second load changes nothing.
    assert "already cached" in command("load", file, "--url", second.admin)[1]
    wait_until(lambda: second.ledger()["slots_receiving"] == 0, "the memory of the load")


def test_of_several_replicas_the_one_that_has_the_conversation_saves_and_loads_it(
    first: Server, second: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = running.folder()
    assert folder is not None
    served = running.RunningDeployment(
        "two", "", "http://127.0.0.1:1", 1, ("http://127.0.0.1:1", first.admin, second.admin)
    )
    record = {"born": running._start_ticks(os.getpid()), "deployments": [asdict(served)]}
    (folder / f"{os.getpid()}.json").write_text(json.dumps(record))
    ask(second, "held")
    (tmp_path / "held.json").write_text(json.dumps(messages("held")))
    before = first.ledger()["checkpoints"]
    code, output = command("save", tmp_path / "held.json", "--url", "two")
    assert code == 0, output
    depth = listed(tmp_path)["depth"]
    assert depth > 100
    status, answer = call(f"{first.admin}/admin/session/depth", {"messages": messages("held")})
    assert (status, answer["depth"]) == (200, 0)
    # The first engine has not computed anything, and a load goes where the conversation is, too.
    code, output = command("load", tmp_path / "held.session", "--url", "two")
    assert (code, "already cached" in output) == (0, True), output
    assert first.ledger()["checkpoints"] == before


def test_a_prompt_is_saved_like_a_conversation(first: Server, second: Server, tmp_path: Path) -> None:
    body = {"prompt": f"a prompt {WORDS}"}
    request = urllib.request.Request(
        f"{first.admin}/admin/session", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        file = answer.read()
    status, reply = put(second, file)
    assert (status, reply["installed"]) == (200, True), reply
    status, answered = call(f"{second.url}/v1/completions", {**body, "max_tokens": 1})
    assert answered["usage"]["prompt_tokens_details"]["cached_tokens"] == reply["depth"] > 0


def damages(whole: bytes) -> Iterator[bytes]:
    """Yield the file with a flipped bit in its header, its state and its notes, cut, and empty."""
    for at in (40, 4096 + 1000, len(whole) - 200):
        raw = bytearray(whole)
        raw[at] ^= 1
        yield bytes(raw)
    yield whole[:-1]
    yield b""


def test_a_damaged_file_is_refused_and_listed_as_damaged(
    first: Server, second: Server, tmp_path: Path
) -> None:
    file = saved(first, tmp_path, "damaged")
    for raw in damages(file.read_bytes()):
        status, answer = put(second, raw)
        assert status == 422, answer
        account = second.ledger()
        assert account["slots_receiving"] == account["slots_quarantined"] == 0
        file.write_bytes(raw)
        [session] = session_list.listed(tmp_path)
        assert session.damage
    code, output = command("load", file, "--url", second.admin)
    assert (code, file.name in output) == (2, True), output
    assert listed(tmp_path)["damage"]


def test_a_session_of_another_model_is_refused_by_name(first: Server, tmp_path: Path) -> None:
    file = saved(first, tmp_path, "foreign")
    with engine("--arena-bytes", "16Mi", "--state-dtype", "float16") as other:
        code, output = command("load", file, "--url", other.admin)
    assert (code, "tiny-recall" in output) == (2, True), output


def test_a_session_that_no_arena_of_this_size_holds_is_refused_with_numbers(
    first: Server, tmp_path: Path
) -> None:
    (tmp_path / "long.json").write_text(json.dumps({"prompt": WORDS * 8}))
    assert command("save", tmp_path / "long.json", "--url", first.admin)[0] == 0
    with engine("--arena-bytes", "1Mi", "--max-model-len", "256") as small:
        code, output = command("load", tmp_path / "long.session", "--url", small.admin)
        assert (code, "--arena-bytes" in output) == (3, True), output
        assert call(f"{small.url}/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0]"),
        ({"prompt": [WORDS, WORDS]}, "prompt"),
        ({"prompt": "x"}, None),
        ({}, None),
    ],
)
def test_what_cannot_be_saved_is_refused(first: Server, body: Any, param: str | None) -> None:
    status, answer = call(f"{first.admin}/admin/session", body)
    assert status == 400, answer
    assert (answer["error"]["param"] or "").startswith(param or "")


def test_a_save_from_a_server_that_is_none_leaves_no_file(first: Server, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps(messages("port")))
    # The public port of an engine has no admin calls.
    code, output = command("save", tmp_path / "c.json", "--url", first.url)
    assert (code, "admin" in output) == (1, True), output
    assert [file.name for file in tmp_path.iterdir()] == ["c.json"]
