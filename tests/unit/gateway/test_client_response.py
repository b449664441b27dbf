"""Which parts of an answer may be written at once, and which go through whoever stands around."""

from typing import Any

from mamba_edge.exchange.asgi_responses import EVENT_STREAM
from mamba_gateway.relay.answer import ClientResponse

START = {"type": "http.response.start", "status": 200, "headers": list(EVENT_STREAM)}


class Client:
    def __init__(self, *, takes: bool = True) -> None:
        self.messages: list[Any] = []
        self.written: list[bytes] = []
        self.takes = takes

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    def write_now(self, part: bytes) -> bool:
        if self.takes:
            self.written.append(part)
        return self.takes


async def test_the_first_part_is_a_message_and_the_others_are_written() -> None:
    client = Client()
    response = ClientResponse(client.send, client.write_now)
    await response(START)
    assert not response.write(b"1")
    await response({"type": "http.response.body", "body": b"1", "more_body": True})
    assert response.first_byte is not None
    assert response.write(b"2")
    assert (len(client.messages), client.written) == (2, [b"2"])


async def test_what_the_client_cannot_take_now_and_what_no_server_offers_is_left_to_messages() -> None:
    client = Client(takes=False)
    for response in (ClientResponse(client.send, client.write_now), ClientResponse(client.send)):
        await response(START)
        await response({"type": "http.response.body", "body": b"1", "more_body": True})
        assert not response.write(b"2")


async def test_a_refusal_behind_comments_is_never_written_as_it_came() -> None:
    client = Client()
    response = ClientResponse(client.send, client.write_now)
    response._opened = True  # comments have opened a stream
    await response({**START, "status": 400, "headers": [(b"content-type", b"application/json")]})
    await response({"type": "http.response.body", "body": b'{"error":', "more_body": True})
    assert not response.write(b'{"code":"x"}}')
    assert client.written == []
