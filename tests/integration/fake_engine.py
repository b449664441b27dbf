"""An engine process without a model: speaks the wire, repeats the prompt as its output, obeys scripts.

Started by the API process in tests instead of the real engine. The script of one request is its `cache_salt`
(words joined by "+"), the script of the whole process is $FAKE_ENGINE (JSON).
"""

import argparse
import asyncio
import json
import os
import struct
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from mamba_server import wire

TAIL = 5
"""Uncached tokens at the end of a prompt with cached tokens."""


class FakeEngine:
    def __init__(self, script: dict[str, Any], settings: dict[str, Any]) -> None:
        self.script = script
        self.settings = settings
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.stopped: dict[tuple[str, int], int] = {}
        self.seen: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.verbs: list[str] = []
        self.costs: Counter[int] = Counter()
        """Nanoseconds of the device by account, since the last statistics."""
        self.encoder = wire.encoder()

    async def run(self, to_engine: str, from_engine: str) -> int:
        context = zmq.asyncio.Context()
        self.inbound = context.socket(zmq.PULL)
        self.outbound = context.socket(zmq.PUSH)
        self.inbound.connect(to_engine)
        self.outbound.connect(from_engine)
        script = self.script
        for done in range(script.get("progress", 0)):
            await self.send(wire.Progress("weights", done, script["progress"]))
            await asyncio.sleep(0.05)
        await asyncio.sleep(script.get("load", 0))
        while "gate" in script and not Path(script["gate"]).exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
        if "garbage" in script:
            await self.outbound.send(b"\x93garbage")
        if "fatal" in script:
            await self.send(wire.Fatal(script["fatal"], script.get("exit_code", 1)))
            await asyncio.sleep(0.2)
            return int(script.get("exit_code", 1))
        if "die" in script:
            return int(script["die"])
        plan = {"strategy": "ExtraBufferLazy", "pages": 64, "pageSize": 16, "pid": os.getpid()}
        eos = tuple(script.get("eos", (2,)))
        vocab = script["vocab"]
        await self.send(wire.Ready(vocab, script.get("max_model_len", 128), eos, plan))
        beat = asyncio.create_task(self.beat())
        decoder = wire.decoder(wire.ToEngine)
        while True:
            message = decoder.decode(await self.inbound.recv())
            if isinstance(message, wire.Shutdown):
                beat.cancel()
                return 0
            await self.handle(message)

    async def send(self, message: wire.FromEngine) -> None:
        await self.outbound.send(self.encoder.encode(message))

    async def beat(self) -> None:
        while True:
            running = len(self.tasks)
            counters = {
                "steps_total": 7.0,
                "preemptions_total": 2.0,
                "prefix_misses_total{cause=evicted}": 3.0,
            }
            gauges = {
                "requests_running": float(running), "requests_waiting": 1.0,
                "slabs{owner=free}": 4.0, "slabs{owner=live}": 1.0, "slabs{owner=cached}": 3.0,
                "pages{owner=free}": 10.0, "pages{owner=sequence}": 30.0,
                "arena_usage": 0.75, "state_usage": 0.2, "kv_usage": 0.5,
            }  # fmt: skip
            costs = [(account, wire.Cost(device=amount)) for account, amount in self.costs.items()]
            self.costs.clear()
            stats = wire.EngineStats(counters, gauges, [(0.001, 0.01, 0.002)], [running], costs=costs)
            await self.send(stats)
            await asyncio.sleep(self.script.get("beat", 0.1))

    async def handle(self, message: wire.ToEngine) -> None:
        match message:
            case wire.AddRequest():
                await self.send(wire.Taken([message.request_id]))
                self.seen.append(msgspec.to_builtins(message, enc_hook=list))
                self.tasks[message.request_id] = asyncio.create_task(self.serve(message))
            case wire.StopSequence(request_id, index, keep):
                self.stopped[(request_id, index)] = keep
            case wire.AbortRequest(request_id):
                self.aborted.append(request_id)
                if (task := self.tasks.pop(request_id, None)) is not None:
                    task.cancel()
            case wire.AdminCall(call_id, verb, body):
                self.verbs.append(verb)
                if verb == "hang":
                    time.sleep(600)  # noqa: ASYNC251 - a hung process is what is wanted
                if body.get("strategy") == "ExtraBuffer" and body.get("trackInterval") == 7:
                    await self.send(wire.AdminReply(call_id, 400, {"message": "not a multiple"}))
                    return
                answer = {
                    "verb": verb, "body": body, "seen": self.seen, "aborted": self.aborted,
                    "pid": os.getpid(), "verbs": self.verbs,
                    "stopped": [[*key, keep] for key, keep in self.stopped.items()],
                    "running": list(self.tasks), "settings": self.settings,
                }  # fmt: skip
                await self.send(wire.AdminReply(call_id, 200, answer))

    async def serve(self, request: wire.AddRequest) -> None:
        script = request.cache_salt.split("+")
        delay = 0.05 if "slow" in script else 0.0
        if "wait" in script:
            await asyncio.sleep(1.0)
        if "never" in script:
            await asyncio.sleep(3600)
        if "reject" in script:
            await self.send(
                wire.RequestRejected(
                    request.request_id, 429, "rate_limit_error", "over_capacity", "full", 7.0
                )
            )
            return
        sequences = [self.sequence(request, index, script, delay) for index in range(request.n)]
        await asyncio.gather(*sequences)
        self.tasks.pop(request.request_id, None)

    async def sequence(self, request: wire.AddRequest, index: int, script: list[str], delay: float) -> None:
        params, prompt = request.params, request.token_ids
        scored = None
        if params.prompt_logprobs >= 0:
            scored = [None, *(self.logprobs(item, params.prompt_logprobs) for item in prompt[1:])]
        if not params.max_tokens:
            last = wire.SequenceDelta(
                request.request_id, index, [], finish_reason="length", prompt_logprobs=scored,
                embedding=struct.pack("<4f", 3, 4, 0, len(prompt)) if params.pooling else b"",
            )  # fmt: skip
            await self.send(wire.Outputs([last]))
            return
        source = prompt[1:] if prompt[0] == 1 and len(prompt) > 1 else prompt
        for place in range(params.max_tokens):
            if delay:
                await asyncio.sleep(delay)
            if (request.request_id, index) in self.stopped:
                return
            while "held" in script and place == 3 and not Path(self.script["hold"]).exists():  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.01)
            if "stuck" in script and place == 3:
                await asyncio.sleep(3600)
            if "die" in script and place == 2:
                os._exit(9)
            token = source[(place + index) % len(source)]
            ends = "eos" in script and place == 3 and not params.ignore_eos
            if ends:
                token = 2
            last = ends or place == params.max_tokens - 1 or token in params.stop_token_ids
            failed = "fail" in script and place == 2
            reason = "error" if failed else "length" if last and not ends else "stop" if ends else None
            if token in params.stop_token_ids:
                reason = "stop"
            delta = wire.SequenceDelta(
                request.request_id, index, [token],
                logprobs=[self.logprobs(token, params.logprobs)] if params.logprobs >= 0 else None,
                finish_reason=reason,
                stop_token_id=token if reason == "stop" else None,
                cached_tokens=max(0, len(prompt) - TAIL) if place == 0 else 0,
                prompt_logprobs=scored if place == 0 else None,
            )  # fmt: skip
            await self.send(wire.Outputs([delta]))
            if "charges" in self.script:
                self.costs[request.account] += 10_000_019
            if reason is not None:
                return
            await asyncio.sleep(0)

    @staticmethod
    def logprobs(token: int, most: int) -> wire.TokenLogprobs:
        others = [item for item in range(10, 10 + most) if item != token][: max(0, most - 1)]
        top = [token, *others] if most else []
        return wire.TokenLogprobs(token, -0.5, top, [-0.5 - place for place in range(len(top))])


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("--settings", "--to-engine", "--from-engine"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    settings = json.loads(given.settings)
    script = json.loads(os.environ.get("FAKE_ENGINE", "{}"))
    if "once" in script:  # a script for the first start alone
        mark = Path(script["once"])
        script = script["then"] if mark.exists() else script["first"]
        mark.touch()
    config = json.loads((Path(settings["model"]) / "config.json").read_text())
    script.setdefault("vocab", config["vocab_size"])
    return asyncio.run(FakeEngine(script, settings).run(given.to_engine, given.from_engine))


if __name__ == "__main__":
    sys.exit(main())
