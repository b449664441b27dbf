"""The small parts of local mode: bar, demo, readiness, watching, ports, devices, model facts."""

import errno
import io
import json
import re
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mamba_api.v1alpha1 import MambaDeployment
from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.local import demo, ports
from mamba_cli.local.documents import LoadedDeployment, read_deployments
from mamba_cli.local.edits import FileStamp, changed, settled
from mamba_cli.local.loading.loading_view import LoadingView
from mamba_cli.local.loading.readiness import EngineReadiness, readiness_of
from mamba_cli.local.model_facts import facts_of_directory, facts_of_model, local_uri
from mamba_cli.local.plan_view import bar_cells, plan_view
from mamba_cli.local.planning import PlanFlags, gpu_memory, plan_deployment, plan_directory, size_option
from mamba_cli.local.ports import free_ports, front_port
from mamba_edge.listener import bound
from mamba_planner import LedgerLine
from mamba_planner.arithmetic import WeightsSize
from mamba_server.model.checkpoint.errors import WeightsError
from mamba_server.model.checkpoint.weight_files import weights_size

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"


def model_directory(folder: Path, name: str = "granite-4.0-h-350m") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text((CONFIGS / f"{name}.json").read_text())
    return folder


def safetensors(path: Path, tensors: dict[str, tuple[str, list[int], int]]) -> None:
    """Write a file with the headers; the data are zeros."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))


def shown(renderable: Any, width: int = 100, color: bool = False) -> str:
    output = io.StringIO()
    Console(file=output, width=width, force_terminal=color, no_color=not color).print(renderable)
    return output.getvalue()


def test_a_plan_says_once_how_many_run_and_writes_thousands_alike(tmp_path: Path) -> None:
    outcome = plan_directory(model_directory(tmp_path / "small"), PlanFlags(device_memory=640 << 30))
    assert outcome.plan is not None
    assert outcome.plan.max_running_requests == 1024
    text = " ".join(shown(plan_view(outcome)).split())
    assert "1,024 sequences of 2,048 + 256 tokens at once, the default on GPUs" in text
    assert "assumed prompts of 2,048 tokens" in text
    assert "limited to 1,024 running sequences" in text


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=9), st.integers(9, 200))
def test_the_bar_always_fills_its_width(sizes: list[int], width: int) -> None:
    cells = bar_cells([LedgerLine(str(index), size) for index, size in enumerate(sizes)], width)
    assert sum(count for _, count in cells) == (width if sum(sizes) else 0)
    assert all(count >= 0 for _, count in cells)
    assert all(count == 0 for line, count in cells if line.bytes == 0)


def test_large_parts_of_the_bar_have_their_share() -> None:
    cells = dict(bar_cells([LedgerLine("a", 75), LedgerLine("b", 25), LedgerLine("c", 0)], 40))
    assert [cells[line] for line in cells] == [30, 10, 0]


def test_a_plan_is_shown_with_its_ledger_and_stays_readable_without_colour(tmp_path: Path) -> None:
    outcome = plan_directory(model_directory(tmp_path / "small"), PlanFlags(device_memory=8 << 30))
    text = shown(plan_view(outcome, verbose=True))
    assert "\x1b" not in text
    for line in outcome.plan.ledger if outcome.plan else ():
        if line.bytes > 8 << 20:
            pattern = {"weights": "█", "workspace": "▓"}.get(line.item)
            assert pattern is None or pattern in text
    assert "340.3M parameters" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "\x1b[" in shown(plan_view(outcome), color=True)


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_still_shows_every_word_and_a_whole_bar(tmp_path: Path, width: int) -> None:
    outcome = plan_directory(model_directory(tmp_path / "small"), PlanFlags(device_memory=8 << 30))
    for verbose in (False, True):
        text = shown(plan_view(outcome, verbose=verbose), width=width)
        words = " ".join(line.strip("│ ") for line in text.splitlines())
        assert "340.3M parameters" in words
        assert "…" not in text
        [bar] = [line for line in text.splitlines() if "▕" in line]
        assert "▏" in bar
    for each in outcome.plan.rejected if outcome.plan else ():
        assert f"{each.strategy}, {each.state_dtype}: " in words


def test_one_gpu_size_down_and_up_stand_beside_the_plan_when_asked_for(tmp_path: Path) -> None:
    directory = model_directory(tmp_path / "nano", "nemotron-nano-9b-v2")
    outcome = plan_directory(directory, PlanFlags(device_memory=24 << 30))
    assert outcome.plan is not None
    assert outcome.plan.one_size_up is not None
    assert outcome.plan.one_size_up.chosen is not None
    assert "one GPU size" not in shown(plan_view(outcome))
    text = shown(plan_view(outcome, verbose=True))
    rows = {line[0]: line[1:] for line in (row.strip("│ ").split() for row in text.splitlines()) if line}
    assert rows["15.0Gi"][:3] == ["does", "not", "fit:"]
    assert "15.0Gi 24.0Gi 31.8Gi" in " ".join(text.split())
    assert rows["slots"] == [f"{outcome.plan.slots:,}", f"{outcome.plan.one_size_up.chosen.slots:,}"]
    assert "one GPU size" not in shown(
        plan_view(plan_directory(directory, PlanFlags(device_memory=80 << 30, gpus=0)), verbose=True)
    )


def test_reasons_and_the_choices_not_taken_are_shown_when_asked_for(tmp_path: Path) -> None:
    outcome = plan_directory(model_directory(tmp_path / "small"), PlanFlags(device_memory=8 << 30))
    short, long = shown(plan_view(outcome)), shown(plan_view(outcome, verbose=True))
    assert len(short.splitlines()) < 20 < len(long.splitlines())
    assert "strategy" in short
    assert "not chosen" not in short
    assert "not chosen" in long
    assert "because" in long


def test_a_misfit_is_shown_with_what_is_missing(tmp_path: Path) -> None:
    outcome = plan_directory(model_directory(tmp_path / "small"), PlanFlags(device_memory=1 << 30))
    assert outcome.plan is None
    assert "does not fit" in shown(plan_view(outcome))
    assert "missing" in shown(plan_view(outcome))


def test_all_demo_chats_share_one_document_and_ask_for_what_is_in_it() -> None:
    chats = demo.chats()
    assert len(chats) == 4
    prefixes = {messages[0]["content"] for _, messages in chats}
    assert prefixes == {demo.document()}
    for key in demo.QUESTION_KEYS:
        assert f"\n{key}: " in demo.document()


def test_an_answer_is_read_with_what_was_resumed() -> None:
    body = {
        "choices": [{"message": {"content": " green \n"}}],
        "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}},
    }
    assert demo.read_answer("q", json.dumps(body)) == demo.DemoAnswer("q", "green", 9, 4)
    del body["usage"]["prompt_tokens_details"]  # type: ignore[attr-defined]
    assert demo.read_answer("q", json.dumps(body)).cached_tokens == 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"choices": []}', '{"usage": {"prompt_tokens": "x"}}'])
def test_an_answer_of_another_shape_is_an_error_that_shows_it(text: str) -> None:
    with pytest.raises(RunFailed, match="an answer that is not one of the OpenAI API"):
        demo.read_answer("q", text)


def test_the_summary_counts_all_requests() -> None:
    answers = [demo.DemoAnswer("a", "", 100, 0), demo.DemoAnswer("b", "", 100, 90)]
    assert demo.summary(answers).startswith("90 of 200 prompt tokens (45%)")
    assert demo.summary([]).startswith("0 of 0")


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, {"status": "ready", "stage": None}, EngineReadiness(True, "ready")),
        (503, {"status": "loading", "stage": "weights", "done": 3, "total": 9},
         EngineReadiness(False, "weights", 3, 9)),
        (503, {"status": "loading", "done": None, "reason": "no"},
         EngineReadiness(False, "loading", reason="no")),
        (503, {}, EngineReadiness(False)),
    ],
)  # fmt: skip
def test_readiness_reads_whatever_is_there(
    status: int, body: dict[str, Any], expected: EngineReadiness
) -> None:
    assert readiness_of(status, body) == expected


def test_plain_progress_says_each_quarter_once() -> None:
    output = io.StringIO()
    view = LoadingView(Console(file=output, width=100))
    view.show("one", None)
    for done in range(0, 101, 5):
        view.show("one", EngineReadiness(False, "weights", done << 20, 100 << 20))
    view.show("one", EngineReadiness(True, "ready"))
    view.finish("one")
    view.close()
    lines = output.getvalue().splitlines()
    assert lines[0] == "one: starting"
    assert len(lines) == 1 + 5
    assert lines[-1] == "one: weights 100.0Mi of 100.0Mi"


def test_a_terminal_gets_bars_and_lines_above_them() -> None:
    output = io.StringIO()
    view = LoadingView(Console(file=output, width=100, force_terminal=True))
    view.show("one", EngineReadiness(False, "weights", 1, 2))
    view.print_line("a line [with brackets]")
    view.finish("one")
    view.close()
    assert "a line [with brackets]" in output.getvalue()
    assert "weights" in output.getvalue()


def loading(terminal: bool) -> tuple[LoadingView, io.StringIO]:
    output = io.StringIO()
    return LoadingView(Console(file=output, width=100, force_terminal=terminal)), output


def test_each_engine_says_its_own_stages() -> None:
    view, output = loading(terminal=False)
    view.show("one", EngineReadiness(False, "weights", 0, 8 << 20))
    view.show("two", EngineReadiness(False, "weights", 0, 8 << 20))
    view.show("one", EngineReadiness(False, "warming up", 1, 3))
    view.show("one", EngineReadiness(False, "warming up", 1, 3))
    assert output.getvalue().splitlines() == [
        "one: weights 0 of 8.0Mi", "two: weights 0 of 8.0Mi", "one: warming up 1 of 3"
    ]  # fmt: skip


def test_an_engine_that_starts_again_says_its_stages_again() -> None:
    view, output = loading(terminal=False)
    for _ in range(2):
        view.show("one", None)
        view.show("one", EngineReadiness(True))
        view.finish("one")
    assert output.getvalue().splitlines() == ["one: starting", "one: starting"]


@pytest.mark.parametrize(
    "readiness", [EngineReadiness(False), EngineReadiness(False, "", 5, 0), EngineReadiness(False, "", 0, 0)]
)
def test_progress_without_a_total_is_a_stage_without_an_amount(readiness: EngineReadiness) -> None:
    view, output = loading(terminal=False)
    view.show("one", readiness)
    assert output.getvalue() == "one: loading\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_view_may_be_closed_twice_and_finish_what_it_never_showed(terminal: bool) -> None:
    view, output = loading(terminal)
    view.finish("never")
    view.close()
    view.close()
    view.print_line("after [the] end")
    assert "after [the] end" in output.getvalue()


@pytest.mark.parametrize("width", [60, 80, 130])
def test_stage_amount_and_clock_fit_the_terminal_and_go_on_between_stages(width: int) -> None:
    output = io.StringIO()
    view = LoadingView(Console(file=output, width=width, force_terminal=True))
    for stage, done, total in (("weights", 8 << 30, 8 << 30), ("allocating the arena", 404 << 20, 404 << 20)):
        view.show("NVIDIA-Nemotron-Nano-9B-v2", EngineReadiness(False, stage, done, total))
    view.close()
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue().rpartition("weights")[2])
    for whole in ("allocating the arena", "404.0Mi of 404.0Mi", "0:00:00"):
        assert whole in last
    # A full bar has neither a spinner nor a clock that runs, as if the engine hung until the next stage.
    assert re.search(r"[\u2801-\u28ff] NVIDIA", last)


def test_a_narrow_terminal_is_told_the_stage_whole_and_how_much_of_it_is_done() -> None:
    output = io.StringIO()
    view = LoadingView(Console(file=output, width=40, force_terminal=True))
    view.show("quick-start", EngineReadiness(False, "importing torch", 0, 1))
    view.show("quick-start", EngineReadiness(False, "allocating the arena", 64 << 20, 256 << 20))
    view.close()
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue())
    assert "quick-start: importing torch" in said
    last = said.rpartition("allocating")[2]
    assert re.match(r" the arena +25% +0:00:0\d", last)


def test_the_terminal_is_given_back_when_the_last_engine_is_ready() -> None:
    view, output = loading(terminal=True)
    for name in ("one", "two"):
        view.show(name, EngineReadiness(False, "weights", 1, 2))
    hide, show = "\x1b[?25l", "\x1b[?25h"
    view.finish("one")
    assert output.getvalue().count(hide) > output.getvalue().count(show)
    view.finish("two")
    assert output.getvalue().count(hide) == output.getvalue().count(show)
    view.close()


def test_a_change_is_a_change_of_content(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("a")
    before = [FileStamp.read(file)]
    file.touch()
    assert changed(before, [FileStamp.read(file)]) == []
    file.write_text("b")
    assert changed(before, [FileStamp.read(file)]) == [file]


def test_a_file_that_is_being_replaced_is_noticed_when_it_is_back(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("a")
    before = [FileStamp.read(file)]
    file.unlink()
    gone = [FileStamp.read(file)]
    assert changed(before, gone) == []
    kept = settled(before, gone)
    file.write_text("b")
    assert changed(kept, [FileStamp.read(file)]) == [file]
    file.write_text("a")
    assert changed(kept, [FileStamp.read(file)]) == []


def test_a_free_port_is_given_and_a_taken_one_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RunFailed, match=f"port {port} .* is in use"):
            front_port("127.0.0.1", port)
    assert front_port("127.0.0.1", port) == port
    assert len(set(free_ports(5))) == 5
    assert free_ports(0) == []
    assert front_port("127.0.0.1", 0) > 0


CONNECTIONS = ports._RANGE_OF_CONNECTIONS


@pytest.mark.skipif(not CONNECTIONS.exists(), reason="the system does not tell its range of ports")
def test_a_free_port_is_none_that_an_outgoing_connection_may_take() -> None:
    first = int(CONNECTIONS.read_text().split()[0])
    assert all(port < first for port in [*free_ports(50), front_port("127.0.0.1", 0)])


def test_free_ports_are_given_where_the_range_of_connections_leaves_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for text in ("1024 65535", "", "?"):
        (tmp_path / "range").write_text(text)
        monkeypatch.setattr(ports, "_RANGE_OF_CONNECTIONS", tmp_path / "range")
        assert len(set(free_ports(3))) == 3


@pytest.mark.parametrize("host", ["::", "::1"])
def test_addresses_of_ipv6_have_ports_too(host: str) -> None:
    try:
        taken = bound(host, 0)
    except OSError:
        pytest.skip(f"{host} is not an address of this machine")
    with taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RunFailed, match=f"port {port} .* is in use"):
            front_port(host, port)
    assert front_port(host, port) == port
    assert front_port(host, 0) > 0


def test_every_address_is_taken_when_one_of_them_is() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(RunFailed, match="is in use"):
            front_port("::", taken.getsockname()[1])


def test_a_port_that_may_not_be_used_is_not_said_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(host: str, port: int) -> socket.socket:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("mamba_cli.local.ports.bound", refuse)
    with pytest.raises(RunFailed, match=r"port 80 of 0\.0\.0\.0 cannot be used: Permission denied"):
        front_port("0.0.0.0", 80)


def test_a_foreign_host_is_wrong_usage() -> None:
    with pytest.raises(InvalidInput, match=r"192\.0\.2\.1"):
        front_port("192.0.2.1", 8123)


def test_the_smallest_gpu_counts_and_no_driver_means_none() -> None:
    assert gpu_memory([sys.executable, "-c", "print(81559); print(40960)"]) == 40_960 << 20
    assert gpu_memory([sys.executable, "-c", "raise SystemExit(9)"]) is None
    assert gpu_memory(["/nowhere/nvidia-smi"]) is None
    assert gpu_memory([sys.executable, "-c", "import time; time.sleep(9)"], timeout=0.2) is None


def test_weights_are_measured_from_the_headers_of_all_files(tmp_path: Path) -> None:
    assert weights_size(tmp_path) is None
    safetensors(tmp_path / "a.safetensors", {"x": ("BF16", [2, 3], 12)})
    safetensors(tmp_path / "b.safetensors", {"y": ("F32", [4], 16), "z": ("F32", [], 4)})
    assert weights_size(tmp_path) == WeightsSize(32, 11, 6, rows=2)


@pytest.mark.parametrize(
    "content", [b"", b"abc", struct.pack("<Q", 999) + b"{}", struct.pack("<Q", 2) + b"[]"]
)
def test_a_damaged_weight_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match=r"a\.safetensors"):
        weights_size(tmp_path)


def test_weights_follow_the_type_they_are_loaded_as(tmp_path: Path) -> None:
    folder = model_directory(tmp_path / "m")
    safetensors(folder / "a.safetensors", {"x": ("BF16", [8], 16), "y": ("BF16", [2, 32], 128)})
    facts = facts_of_directory(folder)
    assert facts.weights_bytes(None) == 144
    assert facts.weights_bytes("float32") == 288
    assert facts.weights_bytes(None, "int8") == 16 + 64 + 2 * 2
    assert facts.weights_bytes("float32", "int8") == 32 + 64 + 2 * 2


def test_matrices_of_four_bits_count_so_beside_an_embedding_and_a_head_of_more(tmp_path: Path) -> None:
    folder = model_directory(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    shape = [config["vocab_size"], config["hidden_size"]]
    vocabulary = shape[0] * shape[1]
    for tied in (True, False):
        (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": tied}))
        tensors = {str(number): ("BF16", shape, 2 * vocabulary) for number in range(1 if tied else 2)}
        safetensors(
            folder / "a.safetensors", {**tensors, "x": ("BF16", [8], 16), "y": ("BF16", [4, 64], 512)}
        )
        facts, of_block = facts_of_directory(folder), 4 * 64 * 18 // 32
        on_cpus = facts.weights_bytes(None, "int4", on_cpu=True)
        assert on_cpus == 16 + len(tensors) * vocabulary * 34 // 32 + of_block
        assert facts.weights_bytes(None, "int4") == 16 + len(tensors) * vocabulary * 2 + of_block


def test_weights_stored_wider_than_the_configuration_says_are_counted_as_the_engine_loads_them(
    tmp_path: Path,
) -> None:
    folder = model_directory(tmp_path / "m")
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "bfloat16"
    safetensors(folder / "a.safetensors", {"x": ("F32", [8], 32), "y": ("F32", [2, 32], 256)})
    facts = facts_of_directory(folder)
    assert facts.weights_bytes(None) == facts.weights_bytes("bfloat16") == 144
    assert facts.weights_bytes(None, "int8") == 16 + 64 + 2 * 2


def test_true_weights_stand_in_the_plan(tmp_path: Path) -> None:
    folder = model_directory(tmp_path / "m")
    safetensors(folder / "a.safetensors", {"x": ("BF16", [1000], 2000)})
    outcome = plan_directory(folder, PlanFlags(device_memory=8 << 30))
    assert outcome.to_json()["model"]["weightsBytes"] == 2000
    assert not any("by parameter count" in note for note in outcome.notes)


def test_relative_model_paths_start_at_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a" / "mamba.yaml"
    assert local_uri("file://./m", file) == str(tmp_path / "a" / "m")
    assert local_uri("file://../m", file) == str(tmp_path / "m")
    assert local_uri("file:///m", file) == "file:///m"
    assert local_uri("builtin://tiny-recall", file) == "builtin://tiny-recall"


def test_an_inline_configuration_wins_and_its_mistakes_are_named(tmp_path: Path) -> None:
    config = json.loads((CONFIGS / "bamba-9b.json").read_text())
    assert facts_of_model("hf://a/b", config, tmp_path / "f.yaml").config.family == "bamba"
    del config["mamba_d_state"]
    with pytest.raises(InvalidInput, match=r"f.yaml: spec.model.config: field mamba_d_state is missing"):
        facts_of_model("hf://a/b", config, tmp_path / "f.yaml")


@pytest.mark.parametrize(
    ("uri", "words"),
    [("file://./absent", "does not exist"), ("pvc://claim/path", "give spec.model.config to plan without"),
     ("builtin://absent", "no built-in model")],
)  # fmt: skip
def test_a_model_that_is_not_there_is_named_with_file_and_field(tmp_path: Path, uri: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=rf"f.yaml: spec.model.uri: .*{words}"):
        facts_of_model(uri, None, tmp_path / "f.yaml")


def test_a_spec_whose_parts_do_not_go_together_is_invalid_input(tmp_path: Path) -> None:
    model_directory(tmp_path / "m")
    body = {
        "metadata": {"name": "one"},
        "spec": {"model": {"uri": "file://./m"}},
    }
    loaded = LoadedDeployment(tmp_path / "f.yaml", MambaDeployment.model_validate(body))
    with pytest.raises(InvalidInput, match=r"f.yaml: one: utilization 2.0 must be above 0"):
        plan_deployment(loaded, PlanFlags(device_memory=8 << 30, utilization=2.0))


def test_all_problems_of_all_files_are_said_at_once(tmp_path: Path) -> None:
    good = "apiVersion: serving.mambaserve.io/v1alpha1\nkind: MambaDeployment\nmetadata: {name: one}\n"
    good += "spec: {model: {uri: 'builtin://x'}}\n"
    (tmp_path / "a.yaml").write_text(good)
    (tmp_path / "b.yaml").write_text(good)
    (tmp_path / "c.yaml").write_text("kind: [")
    with pytest.raises(InvalidInput) as caught:
        read_deployments([tmp_path / name for name in ("a.yaml", "b.yaml", "c.yaml", "d.yaml")])
    text = str(caught.value)
    assert "b.yaml: one is also defined in" in text
    assert "c.yaml" in text
    assert "d.yaml: no such file" in text


def test_sizes_are_quantities_and_mistakes_name_the_option() -> None:
    assert size_option("--x", "2Gi") == 2 << 30
    assert size_option("--x", "80 GiB") == 80 << 30
    assert size_option("--x", None) is None
    with pytest.raises(InvalidInput, match=r"--x: .*did you mean 80Gi"):
        size_option("--x", "80gib")
    with pytest.raises(InvalidInput, match="--x: must be above 0"):
        size_option("--x", "0")
    with pytest.raises(InvalidInput, match=r"--x: 80 without a unit is 80 bytes: write 80Gi"):
        size_option("--x", "80")
