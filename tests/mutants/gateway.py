"""Seeded defects of the gateway and the Kubernetes client: each would lose, double or misroute requests."""

from seeded import Mutant

GATEWAY, KUBE = "server/mamba_gateway/", "operator/mamba_kube/"
UNIT = "tests/unit/gateway/"
RELAY = (UNIT + "test_relay.py",)
PROXY = (UNIT + "test_proxy_endpoint.py",)
FAILURES, HELD = (f"tests/integration/gateway/test_{name}.py" for name in ("failures", "held_requests"))
PICKER = (
    "tests/integration/gateway/test_endpoint_picker.py",
    "tests/integration/gateway/test_picker_keys.py",
)

MUTANTS = (
    Mutant(
        "our own requests count twice in an endpoint's load", GATEWAY + "endpoints/endpoint.py",
        "self.running + self.waiting - self.in_flight_at_report", "self.running + self.waiting",
        (UNIT + "test_routing.py",),
    ),
    Mutant(
        "a draining endpoint may still be chosen", GATEWAY + "routing/decision.py",
        "        and not one.draining\n", "",
        (UNIT + "test_routing.py",),
    ),
    Mutant(
        "the dearest endpoint is chosen", GATEWAY + "routing/decision.py",
        "if total <= least]", "if total >= max(totals)]",
        (UNIT + "test_routing.py",),
    ),
    Mutant(
        "a prompt that an engine can resume costs as much as elsewhere", GATEWAY + "routing/scoring.py",
        "tokens - resumed + ratio", "tokens + ratio",
        (UNIT + "test_scoring.py",),
    ),
    Mutant(
        "prompts that wait before a request cost nothing", GATEWAY + "routing/scoring.py",
        "total += load * (self.jitters[at] * queued / rate)", "pass",
        (UNIT + "test_scoring.py",),
    ),
    Mutant(
        "each gateway has a home of its own for a new prefix", GATEWAY + "endpoints/endpoint.py",
        "hashlib.blake2b(name.encode", "hashlib.blake2b((name + str(id(_key))).encode",
        (UNIT + "test_scoring.py",),
    ),
    Mutant(
        "numbers that requests change are those of the last report", GATEWAY + "endpoints/pool.py",
        'force_setattr(made, "service_seconds", record.service_seconds)', "pass",
        (UNIT + "test_endpoints.py",),
    ),
    Mutant(
        "what was sent since the last report is forgotten", GATEWAY + "endpoints/prompt_queue.py",
        "return max(0.0, self._unreported) + max(", "return max(",
        (UNIT + "test_prompt_queue.py",),
    ),
    Mutant(
        "a request that kills engines goes round the whole pool", GATEWAY + "relay/relay.py",
        "if last or lost_engines:", "if last:",
        (UNIT + "test_relay.py", "tests/integration/gateway/test_failures.py"),
    ),
    Mutant(
        "an endpoint keeps a request that failed there", GATEWAY + "relay/relay.py",
        "            finally:\n                self._pool.end(endpoint.url, ticket, failed=failed)",
        "            else:\n                self._pool.end(endpoint.url, ticket, failed=failed)",
        RELAY,
    ),
    Mutant(
        "an endpoint that could not be reached is chosen again at once", GATEWAY + "relay/relay.py",
        "self._pool.suspect(endpoint.url, detail)", "pass",
        RELAY,
    ),
    Mutant(
        "what one engine alone refuses goes to the client", GATEWAY + "relay/relay.py",
        "frozenset((401, 403, 404, 429))", "frozenset()",
        (FAILURES,),
    ),
    Mutant(
        "an engine that rejects everything keeps drawing the traffic", GATEWAY + "endpoints/pool.py",
        'self.fail(url, "it rejected', 'str("it rejected',
        (FAILURES,),
    ),
    Mutant(
        "requests that are held keep their permits", GATEWAY + "routing/endpoint_wait.py",
        "changed if permit is None else permit.while_held(changed)", "changed",
        (HELD,),
    ),
    Mutant(
        "whoever comes last is refused, whoever has all admissions", GATEWAY + "admission/admission.py",
        "key = admitted.greediest(newcomer)", "key = newcomer",
        (HELD,),
    ),
    Mutant(
        "idle connections keep a new one out", "server/mamba_edge/connection_room.py",
        "            self._evict(next(iter(self._waiting)))\n", "            self._evict(connection)\n",
        ("tests/unit/edge/test_connections.py",),
    ),
    Mutant(
        "probes are refused beside as many requests as may be", "server/mamba_edge/connection_room.py",
        "if path in PROBES:", "if not path:",
        ("tests/unit/edge/test_connections.py",),
    ),
    Mutant(
        "a stream keeps its declared length and has no room for an error", GATEWAY + "relay/relay.py",
        'if pair[0] != b"content-length"]', "]",
        RELAY,
    ),
    Mutant(
        "half an event is passed on before an error", GATEWAY + "relay/events.py",
        "out, self._buffer = data[:end], data[end:]", 'out, self._buffer = data, b""',
        (UNIT + "test_events.py",),
    ),
    Mutant(
        "a broken stream ends without [DONE]", GATEWAY + "relay/events.py",
        "+ error.event() + DONE", "+ error.event()",
        (UNIT + "test_events.py",),
    ),
    Mutant(
        "a permit is lost when a relay fails", GATEWAY + "admission/admission.py",
        "        self.release()\n\n    def used",
        "        if not _[0]:\n            self.release()\n\n    def used",
        (UNIT + "test_admission.py",),
    ),
    Mutant(
        "the queue has one place too many", GATEWAY + "admission/admission.py",
        "if self._admitted.count >= self.max_in", "if self._admitted.count > self.max_in",
        (UNIT + "test_admission.py",),
    ),
    Mutant(
        "a drain does not reach clients that still send", GATEWAY + "relay/proxy_endpoint.py",
        "        task = self._started()\n        with self._admission.body_arrives(key, task.cancel)",
        "        task = asyncio.current_task()\n        with self._admission.body_arrives(key, task.cancel)",
        PROXY,
    ),
    Mutant(
        "who has no answer at the end of a drain gets none", GATEWAY + "relay/proxy_endpoint.py",
        "            if not response.answering:\n                raise GatewayDraining(DRAINING) from None",
        "            return",
        PROXY,
    ),
    Mutant(
        "keys are asked for after the body", GATEWAY + "relay/proxy_endpoint.py",
        "            if self._keys:\n",
        "            if self._keys and (await self._body(scope, receive, key)):\n",
        PROXY,
    ),
    Mutant(
        "hop-by-hop headers named by Connection go to the engine", GATEWAY + "headers.py",
        "        elif name == b\"connection\":", "        elif name == b\"\":",
        (UNIT + "test_headers.py",),
    ),
    Mutant(
        "a client's credentials go to the engine", GATEWAY + "headers.py",
        "found = name in self._own or is_credential(name)", "found = name in self._own",
        PROXY,
    ),
    Mutant(
        "engines are not shown the gateway's own key", GATEWAY + "relay/proxy_endpoint.py",
        "shown = self._backend_keys.first if self._backend_keys else None", "shown = None",
        PROXY,
    ),
    Mutant(
        "an error after a comment closes the stream without a word", GATEWAY + "relay/client_response.py",
        "                await self._end(error.event())", "                pass",
        (UNIT + "test_waiting.py",),
    ),
    Mutant(
        "a comment lands in an answer that has begun", GATEWAY + "relay/client_response.py",
        "                if self.answering:\n                    return\n", "",
        (UNIT + "test_waiting.py",),
    ),
    Mutant(
        "a second status line follows the comments", GATEWAY + "relay/client_response.py",
        "                if not self._opened:\n                    await self._send(message)",
        "                if True:\n                    await self._send(message)",
        (UNIT + "test_waiting.py",),
    ),
    Mutant(
        "the bodies of requests that are over still count", "server/mamba_edge/body_budget.py",
        "        self._budget.held -= self._size\n", "",
        (UNIT + "test_body_budget.py",),
    ),
    Mutant(
        "a body is held as long as its answer streams", GATEWAY + "relay/relay.py",
        "                            request.release_body()\n", "",
        (UNIT + "test_body_budget.py",),
    ),
    Mutant(
        "one slow probe makes a ready engine unready", GATEWAY + "endpoints/probe.py",
        "failures == 0 or failures >= FAILURES", "failures >= 0",
        (UNIT + "test_prober.py",),
    ),
    Mutant(
        "a probe that could not read the models forgets them", GATEWAY + "endpoints/pool.py",
        "report = replace(report, models=record.report.models)", "pass",
        (UNIT + "test_endpoints.py", UNIT + "test_prober.py"),
    ),
    Mutant(
        "an expired watch is followed from where it was", GATEWAY + "endpoints/watch.py",
        'if response.status == 410:\n                raise WatchExpired("the version is gone")',
        "if response.status == 410:\n                return version",
        (UNIT + "test_watch.py",),
    ),
    Mutant(
        "a watch forgets deletions", GATEWAY + "endpoints/watch.py",
        'self._objects.pop(metadata["name"], None)', 'self._objects.get(metadata["name"])',
        (UNIT + "test_watch.py",),
    ),
    Mutant(
        "a terminating pod is no target any more", GATEWAY + "endpoints/discovery.py",
        'conditions.get("ready") is not False or terminating', 'conditions.get("ready") is not False',
        (UNIT + "test_discovery.py",),
    ),
    Mutant(
        "a failed write keeps the next request from waking a deployment", GATEWAY + "wake.py",
        "            except Exception as error:", "            except ValueError as error:",
        (UNIT + "test_wake.py",),
    ),
    Mutant(
        "readiness forgets the drain", GATEWAY + "api/local_routes.py",
        "if self._admission.draining:", "if False:",
        (UNIT + "test_app.py",),
    ),
    Mutant(
        "a request that the proxy ends keeps its engine", GATEWAY + "endpoint_picker/picker.py",
        "        self._pool.end(endpoint.url, exchange.ticket, failed=failed)\n", "",
        PICKER,
    ),
    Mutant(
        "a subset hint is not asked", GATEWAY + "routing/decision.py",
        "        if endpoint.address in addresses or", "        if True or",
        PICKER,
    ),
    Mutant(
        "a fallback that answered is not known to have the request", GATEWAY + "endpoint_picker/picker.py",
        "            exchange.cost = other\n", "",
        PICKER,
    ),
    Mutant(
        "a refusal of the API server passes for its answer", KUBE + "api_server.py",
        "if not 200 <= response.status < 300:", "if response.status >= 500:",
        ("tests/unit/kube_client/test_api_server.py",),
    ),
)  # fmt: skip
