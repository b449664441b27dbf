"""Headers that move states: read strictly, and only from those who may send them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from mamba_edge.api_keys import KeyFile
from mamba_edge.exchange.hand_over_headers import HAND_OVER_HEADER, PEER_HEADER, parse_release
from mamba_edge.exchange.request_context import RequestContext
from mamba_server.api.requests.hand_over_header import comes_from_gateway, hands_over, source_of
from mamba_server.wire import Fetch

SOURCE = b"address=10.0.0.7:9000;incarnation=ab12;export=cd34;depth=96"


def context(key_name: str | None = None, **headers: bytes) -> RequestContext:
    names = {"hand_over": HAND_OVER_HEADER, "peer": PEER_HEADER}
    values = {names[name]: value for name, value in headers.items()}
    return cast("RequestContext", SimpleNamespace(header_values=values, key_name=key_name))


def test_the_source_of_a_hand_over_is_read() -> None:
    assert source_of(context(hand_over=SOURCE)) == Fetch("10.0.0.7:9000", "ab12", 96, "cd34")
    hint = SOURCE.replace(b";export=cd34", b"").replace(b"10.0.0.7", b"[fd00::7]")
    assert source_of(context(peer=hint)) == Fetch("[fd00::7]:9000", "ab12", 96)
    assert source_of(context()) is None
    assert hands_over(context(hand_over=b"export"))
    assert not hands_over(context(hand_over=SOURCE))


@pytest.mark.parametrize(
    "value",
    [
        b"", b"export", b"release=ab", SOURCE + b" ", SOURCE + b";more=1", SOURCE.replace(b"96", b"0"),
        SOURCE.replace(b"96", b"-1"), SOURCE.replace(b"9000", b"0"), SOURCE.replace(b"9000", b"99999"),
        SOURCE.replace(b"10.0.0.7", b"host.example"), SOURCE.replace(b"cd34", b""),
        SOURCE.replace(b";export=cd34", b""), SOURCE.replace(b"ab12", b"a" * 65), SOURCE.replace(b";", b","),
        b"depth=96;" + SOURCE,
    ],
)  # fmt: skip
def test_a_header_of_another_form_is_ignored_with_one_line(value: bytes) -> None:
    with capture_logs() as lines:
        assert source_of(context(hand_over=value)) is None
    assert [line["event"] for line in lines] == ["header_ignored"]


def test_a_hint_names_no_export() -> None:
    with capture_logs() as lines:
        assert source_of(context(peer=SOURCE)) is None
    assert len(lines) == 1


def test_with_keys_only_the_gateway_may_move_states(tmp_path: Path) -> None:
    path = tmp_path / "keys"

    def accepts(text: str, name: str | None) -> bool:
        path.write_text(text)
        return comes_from_gateway(context(name), KeyFile(path, "api_key_file"))

    assert comes_from_gateway(context(None), None)
    assert accepts("one gateway\ntwo alice", "gateway")
    assert not accepts("one gateway\ntwo alice", "alice")
    assert accepts("one alice", "alice")


@pytest.mark.parametrize(
    ("value", "export"), [(b"release=ab12", "ab12"), (b"release=", None), (b"ab12", None)]
)
def test_a_release_names_one_export(value: bytes, export: Any) -> None:
    assert parse_release(value) == export
