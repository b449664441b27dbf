"""Defects of the API: text and stop strings, validation, usage, events, drain, keys, clients that leave."""

from seeded import Mutant

TEXT, API, EDGE = "server/mamba_text/", "server/mamba_server/api/", "server/mamba_edge/"
STOPS, TOKENS = "tests/unit/text/test_stop_strings.py", "tests/unit/text/test_detokenizer.py"
SEQUENCE, DEFAULTS = "tests/unit/text/test_sequence_text.py", "tests/unit/text/test_generation_defaults.py"
CHAT = "tests/unit/text/test_chat_template.py"
SAMPLING, ACTIVE = "tests/unit/api/test_sampling.py", "tests/unit/api/test_active_request.py"
INBOX, DRAIN = (f"tests/unit/api/test_{name}.py" for name in ("inbox", "drain"))
EVENTS, KEYS = (f"tests/unit/edge/test_{name}.py" for name in ("asgi_responses", "api_keys"))
BODIES, ENDPOINTS = (f"tests/unit/api/test_{name}.py" for name in ("responses", "endpoints"))
HOSTILE, PROMPTS, SERVING = (
    f"tests/unit/api/test_{name}.py" for name in ("hostile_bodies", "prompts", "serving")
)
POOL, LOGS = "tests/unit/text/test_encoder_pool.py", "tests/unit/telemetry/test_logs.py"
FIELDS = "tests/unit/api/test_openai.py"
REASONING, TAGGED = "tests/unit/text/test_reasoning.py", "tests/unit/text/test_tagged_call.py"
GRAMMAR = "tests/unit/api/test_output_grammar.py"
CONNECTIONS = "tests/unit/edge/test_connections.py"

PROFILES = "operator/mamba_api/v1alpha1/profiles.py"
OF_PROFILES = "tests/unit/api/test_profiles.py"

MUTANTS = (
    Mutant(
        "a profile wins over what the object says", PROFILES,
        '{"gpus": resources.gpus} | given | _said(resources)', '_said(resources) | given', (OF_PROFILES,),
    ),
    Mutant(
        "the memory of a profile's GPU is taken for another one", PROFILES,
        "if _same_device(profile, resources, scheduling):", "if profile.device_memory:", (OF_PROFILES,),
    ),
    Mutant(
        "an object that is written says gpus though it did not", "operator/mamba_api/v1alpha1/pods.py",
        'unsaid = {"gpus", "gpu_resource"} - self.model_fields_set', "unsaid = set[str]()", (OF_PROFILES,),
    ),
    Mutant(
        "of two stop strings the one that begins first wins", TEXT + "stop_strings.py",
        "(begin + len(stop), begin, stop))", "(begin, begin, stop))", (STOPS,),
    ),
    Mutant(
        "too little is held back for a stop string", TEXT + "markers.py",
        "range(min(len(marker) - 1, len(text)), 0, -1)", "range(1, min(len(marker) - 1, len(text)) + 1)",
        (STOPS,),
    ),
    Mutant(
        "text held back is lost at the end", TEXT + "stop_strings.py",
        'text, self._pending = self._pending, ""', 'text, self._pending = "", ""', (STOPS,),
    ),
    Mutant(
        "the stop string is shown", TEXT + "stop_strings.py",
        "return StopMatch(text[:begin], stop)", "return StopMatch(text[: begin + len(stop)], stop)", (STOPS,),
    ),
    Mutant(
        "the token that completes a stop string does not count", TEXT + "sequence_text.py",
        "place + 1, stopped=True)", "place, stopped=True)", (SEQUENCE,),
    ),
    Mutant(
        "a stop token does not count", TEXT + "sequence_text.py",
        "        self.tokens += len(token_ids) - shown\n", "", (SEQUENCE,),
    ),
    Mutant(
        "a stop string counts one token too early", TEXT + "sequence_text.py",
        "if self.tokens <= self._min_tokens:", "if self.tokens < self._min_tokens:", (SEQUENCE,),
    ),
    Mutant(
        "broken bytes hold text back for ever", TEXT + "detokenizer.py",
        "if len(self._pending) >= MAX_PENDING:", "if False:", (TOKENS,),
    ),
    Mutant(
        "half a character ends an answer", TEXT + "detokenizer.py",
        "self._pending_text().rstrip(REPLACEMENT)", "self._pending_text()", (TOKENS,),
    ),
    Mutant(
        "an answer begins as if there were no prompt", TEXT + "detokenizer.py",
        "self._context = list(prompt_tail[-CONTEXT:])", "self._context = []", (TOKENS,),
    ),
    Mutant(
        "a model that asks for greedy decoding is sampled", TEXT + "generation_defaults.py",
        "temperature=0.0 if greedy else number", "temperature=number", (DEFAULTS,),
    ),
    Mutant(
        "a request's variables replace the messages", TEXT + "chat_template.py",
        'frozenset({"messages", "tools", "add_generation_prompt"})', "frozenset[str]()", (CHAT,),
    ),
    Mutant(
        "prompt and output together may exceed the context", API + "sampling.py",
        "if wanted > room:", "if wanted > limits.max_model_len:", (SAMPLING,),
    ),
    Mutant(
        "a request may name the first id that the model lacks", API + "model_limits.py",
        "if ids and (largest := max(ids)) >= self.vocab_size:",
        "if ids and (largest := max(ids)) > self.vocab_size:", (SAMPLING,),
    ),
    Mutant(
        "the model's temperature wins over the request's", API + "sampling.py",
        "first(request.temperature, defaults.temperature, 1.0)",
        "first(defaults.temperature, request.temperature, 1.0)", (SAMPLING,),
    ),
    Mutant(
        "an end token stops a request that ignores it", API + "sampling.py",
        "if not request.ignore_eos:", "if True:", (SAMPLING,),
    ),
    Mutant(
        "more tokens may be required than allowed", API + "sampling.py",
        "if (request.min_tokens or 0) > max_tokens:", "if False:", (SAMPLING,),
    ),
    Mutant(
        "a client that leaves frees nothing in the engine", API + "active_request.py",
        "self._engine.close(request_id, abort=True)", "self._engine.close(request_id, abort=False)",
        (ACTIVE,),
    ),
    Mutant(
        "a cached prompt is counted for each of its answers", API + "active_request.py",
        "max(cached.get(delta.request_id, 0), delta.cached_tokens)",
        "cached.get(delta.request_id, 0) + delta.cached_tokens", (ACTIVE,),
    ),
    Mutant(
        "usage counts the tokens behind a stop string", API + "active_request.py",
        "self._count(delta, sequence, len(used))", "self._count(delta, sequence, len(delta.token_ids))",
        (ACTIVE,),
    ),
    Mutant(
        "the engine is not told of a stop string", API + "active_request.py",
        "            if finish is None:\n                self._engine.stop", "            if False:\n"
        "                self._engine.stop", (ACTIVE,),
    ),
    Mutant(
        "the answers of a second prompt take the first one's places", API + "active_request.py",
        "place * request.n + index,", "place + index,", (ACTIVE,),
    ),
    Mutant(
        "tokens that pile up behind a slow client are lost", API + "inbox.py",
        "token_ids=first.token_ids + second.token_ids,", "token_ids=second.token_ids,", (INBOX,),
    ),
    Mutant(
        "an error overtakes the tokens before it", API + "inbox.py",
        "            if not deltas:\n                raise", "            if True:\n                raise",
        (INBOX,),
    ),
    Mutant(
        "a drain ends with the first request", API + "drain.py",
        "            if not self.under_way:", "            if True:", (DRAIN,),
    ),
    Mutant(
        "a draining server takes new requests", API + "drain.py",
        "        if self.draining:", "        if False:", (DRAIN,),
    ),
    Mutant(
        "work goes on for a client that left", EDGE + "asgi_responses.py",
        "        for job in (task, watch):\n            job.cancel()\n        await",
        "        watch.cancel()\n        await", (EVENTS,),
    ),
    Mutant(
        "the answer's head is sent before anything can be answered", EDGE + "asgi_responses.py",
        "    started = False\n",
        '    started = True\n    await send({"type": "http.response.start", "status": 200, "headers": []})\n',
        (EVENTS,),
    ),
    Mutant(
        "the sum of tokens leaves the prompt out", API + "responses.py",
        "prompt, completion, prompt + completion,", "prompt, completion, completion,", (BODIES,),
    ),
    Mutant(
        "an impossible token's probability is no JSON", API + "responses.py",
        "return max(logprob, -9999.0)", "return logprob", (BODIES,),
    ),
    Mutant(
        "an error does not say which field is wrong", EDGE + "errors.py",
        '"param": self.param,', '"param": None,', (SAMPLING, ENDPOINTS),
    ),
    Mutant(
        "an error in a stream has a second head", API + "endpoints.py",
        "        if not begun:\n            raise\n", "        raise\n", (ENDPOINTS,),
    ),
    Mutant(
        "a rotated key works only after a restart", EDGE + "api_keys.py",
        "if (stat.st_mtime_ns, stat.st_ino, stat.st_size) != self._stamp:", "if stat.st_mtime_ns < 0:",
        (KEYS,),
    ),
    Mutant(
        "any key opens", EDGE + "api_keys.py",
        "        if not any(matches):", "        if not matches:", (KEYS,),
    ),
    Mutant(
        "every wrong element of a list is complained of", "operator/mamba_api/openai_fields.py",
        "FAIL_FAST = Field(fail_fast=True)", "FAIL_FAST = Field()", (HOSTILE,),
    ),
    Mutant(
        "a table is read before its entries are counted", "operator/mamba_api/openai_fields.py",
        "        if isinstance(value, Mapping) and len(value) > most:", "        if False:", (FIELDS,),
    ),
    Mutant(
        "a prompt that cannot fit is tokenized first", API + "prompts.py",
        "if each is not None and chars > limit * each:", "if False:", (PROMPTS,),
    ),
    Mutant(
        "a prompt is tokenized for whom there is no room", API + "serving.py",
        "        if waiting + prompts > most:", "        if False:", (SERVING, PROMPTS),
    ),
    Mutant(
        "prompts nobody waits for are tokenized all the same", TEXT + "encoder_pool.py",
        "        finally:\n            given_up.set()", "        finally:\n            pass", (POOL,),
    ),
    Mutant(
        "a head may come drop by drop for ever", EDGE + "limited_protocol.py",
        "        if self._timer is None and not", "        self._unwatch()\n        if not", (CONNECTIONS,),
    ),
    Mutant(
        "connections go on with what clients sent ahead all at once", EDGE + "request_turns.py",
        "min(A_TURN, len(self._waiting))", "len(self._waiting)",
        ("tests/unit/edge/test_requests_sent_ahead.py",),
    ),
    Mutant(
        "all requests of a crowd begin at once", EDGE + "request_turns.py",
        "self._waiting or self._begun >= A_TURN", "False",
        ("tests/unit/edge/test_crowds.py",),
    ),
    Mutant(
        "a crowd's connections are accepted one by one", EDGE + "accept_queue.py",
        "self._looked or self._closed", "True",
        ("tests/unit/edge/test_crowds.py",),
    ),
    Mutant(
        "a child process gives out the ids of its parent", EDGE + "request_middleware.py",
        "os.register_at_fork(after_in_child=_new_ids.clear)", "",
        ("tests/unit/edge/test_request_middleware.py",),
    ),
    Mutant(
        "clients fill the memory with targets", EDGE + "request_target.py",
        "if len(target) <= KEPT_BYTES:", "if True:", ("tests/unit/edge/test_request_target.py",),
    ),
    Mutant(
        "an answer in one piece has no end", EDGE + "direct_exchange.py",
        'b"" if more else b"0\\r\\n\\r\\n"', 'b""', ("tests/unit/edge/test_direct_exchange.py",),
    ),
    Mutant(
        "pages of other origins cannot read an answer in one piece", EDGE + "cors.py",
        "scope[DIRECT].through_send = True", "pass", ("tests/unit/edge/test_direct_exchange.py",),
    ),
    Mutant(
        "an emptied key file leaves its keys for ever", EDGE + "api_keys.py",
        "if now - self._broken_since >= GRACE_SECONDS and self._keys:", "if False:", (KEYS,),
    ),
    Mutant(
        "a draining server keeps the connection", EDGE + "errors.py",
        'lead a retry to another one."""\n\n    close = True', 'lead a retry to another one."""\n', (DRAIN,),
    ),
    Mutant(
        "a terminal shows the values of a failed function", "server/mamba_telemetry/logs.py",
        "ConsoleRenderer(colors=colours, exception_formatter=plain)", "ConsoleRenderer(colors=colours)",
        (LOGS,),
    ),
    Mutant(
        "a client that reads late makes the server slow", API + "active_request.py",
        "at = delta.at or time.monotonic()", "at = time.monotonic()", (ACTIVE,),
    ),
    Mutant(
        "arguments of calls reach the template as text", TEXT + "chat_messages.py",
        'made["tool_calls"] = [_call(call) for', 'made["tool_calls"] = [call for', (PROMPTS,),
    ),
    Mutant(
        "half of an end marker is shown as a thought", TEXT + "reasoning.py",
        "thought[: len(thought) - max(unfinished(thought, each) for each in markers)]", "thought",
        (REASONING,),
    ),
    Mutant(
        "tokens of the answer are counted as thoughts", TEXT + "reasoning.py",
        "self._token_tail = None\n                return", "pass", (REASONING,),
    ),
    Mutant(
        "a prompt that closes the thoughts opens them", TEXT + "reasoning.py",
        "return cls.OPEN if begin > end else cls.CLOSED", "return cls.OPEN", (REASONING,),
    ),
    Mutant(
        "a value ends at the first end tag in it", TEXT + "tagged_call.py",
        "if _closes(body, end)), None)", "), None)", (TAGGED,),
    ),
    Mutant(
        "what is no value of its type becomes one", TEXT + "tagged_call.py",
        "return value if _types_of(value) & types else text", "return value", (TAGGED,),
    ),
    Mutant(
        "references of a schema are not looked up", TEXT + "tagged_call.py",
        'found: Any = self._root if head == "#" else None', "found: Any = None", (TAGGED, GRAMMAR),
    ),
    Mutant(
        "a form waits for thoughts that the prompt has closed", API + "output_grammar.py",
        "if unsaid or start is ReasoningStart.CLOSED:", "if unsaid:", (GRAMMAR,),
    ),
    Mutant(
        "a spelt marker is not seen by the grammar", API + "output_grammar.py",
        '"(thoughts | thought end)"', '"thought end"', (GRAMMAR,),
    ),
    Mutant(
        "an argument that has to be there may be missing", API + "forced_calls.py",
        'parts.append(name if key in required else f"{name}?")', 'parts.append(f"{name}?")', (GRAMMAR,),
    ),
)  # fmt: skip
