"""Processes around the one that `http_cpu` measures.

A scripted engine, an API server over it, and a scripted upstream for a gateway. Run by path with the
interpreter of the tree under test; imports no other benchmark.

Roles: `api MODEL`, `engine` (started by `api`, with the arguments of an engine process), `upstream`.
"""

import argparse
import asyncio
import importlib
import json
import sys
from pathlib import Path
from typing import Any

TOKEN_SECONDS = 0.004
"""Between two tokens of a stream: long enough that a slow machine still sends each on its own."""


def engine_settings(**values: Any) -> Any:
    """Return the settings model, wherever the tree under test defines it."""
    for module in ("mamba_settings.engine_settings", "mamba_server.settings"):
        try:
            return importlib.import_module(module).EngineSettings(**values)
        except ModuleNotFoundError:
            continue
    raise SystemExit("this tree has no EngineSettings")


def api(model: str) -> int:
    """Serve a scripted engine until a signal."""
    from mamba_server.api.server import serve

    settings = engine_settings(model=model, served_model_name="m", port=0, log_level="warning")
    return serve(settings, command=(sys.executable, "-P", __file__, "engine"))


class Engine:
    """Answers each request with as many tokens as it may have, all at once or one by one."""

    def __init__(self, outbound: Any, vocab_size: int) -> None:
        import msgspec

        from mamba_server import wire

        self._wire, self._outbound, self._vocab_size = wire, outbound, vocab_size
        # Trees from before the wire had its own encoder are measured, too.
        own = hasattr(wire, "encoder")
        self._encode = (wire.encoder() if own else msgspec.msgpack.Encoder()).encode
        self._decode = (wire.decoder if own else msgspec.msgpack.Decoder)(wire.ToEngine).decode
        self._tasks: set[asyncio.Task[None]] = set()

    async def _send(self, message: Any) -> None:
        await self._outbound.send(self._encode(message))

    async def run(self, inbound: Any) -> None:
        """Run until a signal ends the process."""
        wire = self._wire
        await self._send(wire.Ready(self._vocab_size, 4096, (), {"strategy": "NoBuffer"}))
        while True:
            message = self._decode(await inbound.recv())
            if isinstance(message, wire.Shutdown):
                return
            if isinstance(message, wire.AddRequest):
                task = asyncio.create_task(self._answer(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: Any) -> None:
        wire, tokens = self._wire, request.params.max_tokens
        # Streams are told from whole answers by their cache salt: the wire does not say.
        pieces = [[65]] * tokens if request.cache_salt == "stream" else [[65] * tokens]
        for place, token_ids in enumerate(pieces):
            last = place == len(pieces) - 1
            reason = "length" if last else None
            await self._send(
                wire.Outputs([wire.SequenceDelta(request.request_id, 0, token_ids, finish_reason=reason)])
            )
            if not last:
                await asyncio.sleep(TOKEN_SECONDS)


def engine(arguments: list[str]) -> int:
    """Run an engine process without a model."""
    import zmq
    import zmq.asyncio

    parser = argparse.ArgumentParser()
    for name in ("--settings", "--to-engine", "--from-engine"):
        parser.add_argument(name, required=True)
    options = parser.parse_args(arguments)
    config = json.loads((Path(json.loads(options.settings)["model"]) / "config.json").read_text())

    async def main() -> None:
        with zmq.asyncio.Context() as context:
            inbound, outbound = context.socket(zmq.PULL), context.socket(zmq.PUSH)
            for socket, address in ((inbound, options.to_engine), (outbound, options.from_engine)):
                socket.linger = 0
                socket.connect(address)
            await Engine(outbound, config["vocab_size"]).run(inbound)
            inbound.close()
            outbound.close()

    asyncio.run(main())
    return 0


CHUNK = b'data: {"id":"x","object":"text_completion","choices":[{"index":0,"text":"a"}]}\n\n'
WHOLE = json.dumps(
    {"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": "a" * 64}]}
).encode()
INFO = {
    b"/readyz": b'{"status":"ready","reason":"the model is loaded"}',
    b"/v1/models": b'{"object":"list","data":[{"id":"m","object":"model","created":0,"owned_by":"x"}]}',
    b"/metrics": b"",
}


async def _relayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection of a gateway: probes, whole answers and streams."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            path = head.split(b" ", 2)[1]
            length = next(
                (
                    int(line[15:])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                ),
                0,
            )
            body = json.loads(await reader.readexactly(length)) if length else {}
            if not body.get("stream"):
                answer = WHOLE if body else INFO.get(path, b"{}")
                start = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                writer.write(start % len(answer) + answer)
                continue
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            if body.get("hold"):  # one event, then silence until the client goes
                writer.write(b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK))
                await reader.read(1)
                return
            for _ in range(body["max_tokens"]):
                writer.write(b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK))
                await asyncio.sleep(TOKEN_SECONDS)
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def upstream() -> int:
    """Serve as the upstream of a gateway: print the URL, then serve until the process is killed."""

    async def main() -> None:
        server = await asyncio.start_server(_relayed, "127.0.0.1", 0)
        print(f"upstream ready at http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        await server.serve_forever()

    asyncio.run(main())
    return 0


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    sys.exit(api(*rest) if role == "api" else engine(rest) if role == "engine" else upstream())
