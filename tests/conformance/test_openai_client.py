"""The official openai client, unmodified, against the API process."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from engine_api import ApiProcess, serving
from tiny_model import write_model

USER = [{"role": "user", "content": "one two three"}]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with serving(write_model(tmp_path_factory.mktemp("model") / "tiny")) as running:
        yield running


@pytest.fixture(scope="module")
def client(api: ApiProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{api.url}/v1", api_key="any", max_retries=0, timeout=20) as made:
        yield made


class TestModels:
    def test_the_served_model_is_listed(self, client: openai.OpenAI) -> None:
        assert [model.id for model in client.models.list()] == ["tiny"]

    def test_one_model_is_retrieved_by_name(self, client: openai.OpenAI) -> None:
        assert client.models.retrieve("tiny").id == "tiny"

    def test_another_model_is_not_found(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve("gpt-9")
        assert caught.value.code == "model_not_found"


class TestChat:
    def test_an_answer_has_message_reason_and_usage(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(model="tiny", messages=USER, max_tokens=5)
        assert answer.id.startswith("chatcmpl-")
        assert answer.choices[0].message.role == "assistant"
        assert answer.choices[0].message.content == "user\none"
        assert answer.choices[0].finish_reason == "length"
        usage = answer.usage
        assert usage is not None
        assert usage.completion_tokens == 5
        assert usage.total_tokens == usage.prompt_tokens + 5
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 5

    def test_a_stream_says_what_the_whole_says(self, client: openai.OpenAI) -> None:
        whole = client.chat.completions.create(model="tiny", messages=USER, max_tokens=20, seed=1)
        chunks = list(
            client.chat.completions.create(model="tiny", messages=USER, max_tokens=20, seed=1, stream=True)
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == whole.choices[0].message.content
        assert chunks[0].choices[0].delta.role == "assistant"
        assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
        reasons = [chunk.choices[0].finish_reason for chunk in chunks]
        assert reasons[-1] == "length"
        assert set(reasons[:-1]) <= {None}
        assert len({chunk.id for chunk in chunks}) == 1
        assert all(chunk.usage is None for chunk in chunks)

    def test_usage_comes_in_a_last_chunk_when_asked_for(self, client: openai.OpenAI) -> None:
        *others, last = client.chat.completions.create(
            model="tiny", messages=USER, max_tokens=3, stream=True, stream_options={"include_usage": True}
        )
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.completion_tokens == 3
        assert last.usage.prompt_tokens_details is not None
        assert all(chunk.usage is None for chunk in others)

    @pytest.mark.parametrize("stream", [False, True])
    def test_n_choices_are_independent(self, client: openai.OpenAI, stream: bool) -> None:
        if stream:
            texts = ["", "", ""]
            finished = 0
            for chunk in client.chat.completions.create(
                model="tiny", messages=USER, max_tokens=8, n=3, stream=True
            ):
                choice = chunk.choices[0]
                texts[choice.index] += choice.delta.content or ""
                finished += choice.finish_reason is not None
            assert finished == 3
        else:
            answer = client.chat.completions.create(model="tiny", messages=USER, max_tokens=8, n=3)
            texts = [choice.message.content or "" for choice in answer.choices]
            assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert len(set(texts)) == 3

    @pytest.mark.parametrize("stream", [False, True])
    def test_logprobs_have_one_entry_a_token_with_bytes_that_join_to_the_text(
        self, client: openai.OpenAI, stream: bool
    ) -> None:
        wanted: dict[str, Any] = {
            "model": "tiny", "messages": [{"role": "user", "content": "世界"}], "max_tokens": 9,
            "logprobs": True, "top_logprobs": 3,
        }  # fmt: skip
        if stream:
            entries = []
            for chunk in client.chat.completions.create(**wanted, stream=True):
                if chunk.choices[0].logprobs is not None:
                    entries += chunk.choices[0].logprobs.content or []
        else:
            logprobs = client.chat.completions.create(**wanted).choices[0].logprobs
            assert logprobs is not None
            entries = logprobs.content or []
        assert len(entries) == 9
        assert all(len(entry.top_logprobs) == 3 for entry in entries)
        assert all(entry.logprob <= 0 for entry in entries)
        joined = b"".join(bytes(entry.bytes or []) for entry in entries)
        assert "世界".encode() in joined

    def test_logprobs_without_alternatives_have_none(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(model="tiny", messages=USER, max_tokens=2, logprobs=True)
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert [entry.top_logprobs for entry in logprobs.content or []] == [[], []]

    def test_text_parts_are_joined(self, client: openai.OpenAI) -> None:
        parts = [{"type": "text", "text": "one two "}, {"type": "text", "text": "three"}]
        in_parts = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": parts}],  # type: ignore[typeddict-item]
            max_tokens=12,
        )
        whole = client.chat.completions.create(model="tiny", messages=USER, max_tokens=12)
        assert in_parts.choices[0].message.content == whole.choices[0].message.content

    def test_the_developer_role_is_a_system_message(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(
            model="tiny", messages=[{"role": "developer", "content": "x"}, *USER], max_tokens=8
        )
        assert (answer.choices[0].message.content or "").startswith("system\nx")

    def test_max_completion_tokens_wins_over_max_tokens(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(
            model="tiny", messages=USER, max_tokens=9, max_completion_tokens=2
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2

    def test_without_a_limit_a_chat_may_fill_the_context(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(model="tiny", messages=USER)
        assert answer.usage is not None
        assert answer.usage.total_tokens == 128

    @pytest.mark.parametrize("stop", ["two", ["zzz", "two"]])
    def test_a_stop_string_ends_the_text_before_it(self, client: openai.OpenAI, stop: Any) -> None:
        answer = client.chat.completions.create(model="tiny", messages=USER, max_tokens=50, stop=stop)
        assert answer.choices[0].message.content == "user\none "
        assert answer.choices[0].finish_reason == "stop"

    def test_a_stop_string_in_a_stream_is_never_shown_in_part(self, client: openai.OpenAI) -> None:
        text = ""
        reasons = []
        for chunk in client.chat.completions.create(
            model="tiny", messages=USER, max_tokens=50, stop="three<", stream=True
        ):
            text += chunk.choices[0].delta.content or ""
            reasons.append(chunk.choices[0].finish_reason)
        assert text.count("three") == text.count("three\n")
        assert reasons[-1] is not None

    def test_the_end_token_is_counted_and_not_shown(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(
            model="tiny", messages=USER, max_tokens=50, extra_body={"cache_salt": "eos"}
        )
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].message.content == "user\n"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4


class TestCompletions:
    def test_a_string_is_continued_by_sixteen_tokens(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(model="tiny", prompt="one two three ")
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 16
        assert answer.choices[0].text.startswith("one two")

    @pytest.mark.parametrize(
        ("prompt", "choices"),
        [(["one", "two", "three"], 3), ([[300, 301], [302]], 2), ([300, 301, 302], 1), ("one", 1)],
    )
    def test_every_form_of_prompt_is_taken(self, client: openai.OpenAI, prompt: Any, choices: int) -> None:
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=2)
        assert [choice.index for choice in answer.choices] == list(range(choices))

    def test_n_choices_of_each_prompt_are_numbered_in_order(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(model="tiny", prompt=["one two", "three four"], n=2, max_tokens=4)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert answer.choices[0].text.startswith("one")
        assert answer.choices[2].text.startswith("three")

    def test_a_stream_of_two_prompts_says_what_the_whole_says(self, client: openai.OpenAI) -> None:
        wanted: dict[str, Any] = {"model": "tiny", "prompt": ["one two", "three four"], "max_tokens": 7}
        whole = [choice.text for choice in client.completions.create(**wanted).choices]
        texts = ["", ""]
        for chunk in client.completions.create(**wanted, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == whole

    def test_echo_puts_the_prompt_in_front(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(model="tiny", prompt="one two", max_tokens=3, echo=True)
        assert answer.choices[0].text.startswith("one twoone")

    def test_echo_in_a_stream_comes_once(self, client: openai.OpenAI) -> None:
        chunks = client.completions.create(
            model="tiny", prompt="one two", max_tokens=6, echo=True, stream=True,
            extra_body={"cache_salt": "slow"},
        )  # fmt: skip
        assert "".join(chunk.choices[0].text for chunk in chunks).count("one two") == 3

    def test_zero_tokens_with_echo_and_logprobs_score_the_prompt(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(
            model="tiny", prompt="one two", max_tokens=0, echo=True, logprobs=1
        )
        choice = answer.choices[0]
        assert choice.text == "one two"
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs is not None
        assert choice.logprobs.token_logprobs[0] is None
        assert set(choice.logprobs.token_logprobs[1:]) == {-0.5}
        assert "".join(choice.logprobs.tokens or []) == "<s>one two"

    @pytest.mark.parametrize("stream", [False, True])
    def test_logprobs_say_where_each_token_begins(self, client: openai.OpenAI, stream: bool) -> None:
        wanted: dict[str, Any] = {"model": "tiny", "prompt": "one two three", "max_tokens": 6, "logprobs": 2}
        text, offsets, tokens = "", [], []
        answers = client.completions.create(**wanted, stream=True) if stream else [
            client.completions.create(**wanted)
        ]  # fmt: skip
        for answer in answers:
            text += answer.choices[0].text
            logprobs = answer.choices[0].logprobs
            assert logprobs is not None
            offsets += logprobs.text_offset or []
            tokens += logprobs.tokens or []
            assert all(len(top or {}) == 2 for top in logprobs.top_logprobs or [])
        assert len(tokens) == 6
        assert [text[offset:].startswith(token) for offset, token in zip(offsets, tokens, strict=True)] == [
            True
        ] * 6


class TestExtensions:
    def create(self, client: openai.OpenAI, **extra: Any) -> Any:
        return client.completions.create(
            model="tiny", prompt="one two three", max_tokens=4, extra_body=extra
        ).to_dict()

    def test_token_ids_come_back_when_asked_for(self, client: openai.OpenAI) -> None:
        choice = self.create(client, return_token_ids=True)["choices"][0]
        assert len(choice["token_ids"]) == 4
        assert choice["prompt_token_ids"][0] == 1
        assert choice["prompt_token_ids"][1:5] == choice["token_ids"]
        assert "token_ids" not in self.create(client)["choices"][0]

    def test_token_ids_of_a_chat_stream_join_to_those_of_the_whole(self, client: openai.OpenAI) -> None:
        wanted: dict[str, Any] = {
            "model": "tiny", "messages": USER, "max_tokens": 12, "extra_body": {"return_token_ids": True}
        }  # fmt: skip
        whole = client.chat.completions.create(**wanted).to_dict()
        chunks = [chunk.to_dict() for chunk in client.chat.completions.create(**wanted, stream=True)]
        joined = [item for chunk in chunks for item in chunk["choices"][0].get("token_ids") or []]
        assert joined == whole["choices"][0]["token_ids"]
        assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
        assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])

    def test_prompt_logprobs_have_one_entry_a_prompt_token(self, client: openai.OpenAI) -> None:
        answer = self.create(client, prompt_logprobs=2, return_token_ids=True)
        choice = answer["choices"][0]
        assert choice["prompt_logprobs"][0] is None
        assert len(choice["prompt_logprobs"]) == len(choice["prompt_token_ids"])
        second = choice["prompt_logprobs"][1][str(choice["prompt_token_ids"][1])]
        assert second["logprob"] == -0.5
        assert second["rank"] == 1

    def test_a_stop_token_ends_the_choice(self, client: openai.OpenAI) -> None:
        third = self.create(client, return_token_ids=True)["choices"][0]["token_ids"][2]
        choice = self.create(client, stop_token_ids=[third], return_token_ids=True)["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert choice["token_ids"][-1] == third
        assert len(choice["token_ids"]) == 3

    def test_every_parameter_reaches_the_engine(self, api: ApiProcess, client: openai.OpenAI) -> None:
        client.completions.create(
            model="tiny", prompt="marker", max_tokens=4, temperature=0.3, top_p=0.8, seed=99, n=2,
            presence_penalty=0.5, frequency_penalty=-0.5, logit_bias={"42": -7},
            extra_headers={"X-Mambaserve-Client": "one"},
            extra_body={
                "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.2, "ignore_eos": True, "min_tokens": 2,
                "stop_token_ids": [360], "priority": -3, "cache_salt": "salt",
            },
        )  # fmt: skip
        seen = next(item for item in api.engine()["seen"] if item.get("cache_salt") == "salt")
        assert seen["n"] == 2
        assert seen["priority"] == -3
        assert seen["params"] == {
            "max_tokens": 4, "temperature": 0.3, "top_k": 40, "top_p": 0.8, "min_p": 0.1, "seed": 99,
            "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": -0.5,
            "logit_bias": {"42": -7.0}, "min_tokens": 2, "ignore_eos": True, "stop_token_ids": [360],
        }  # fmt: skip

    def test_a_chat_tells_the_engine_its_turn_boundary(self, api: ApiProcess, client: openai.OpenAI) -> None:
        client.chat.completions.create(
            model="tiny", messages=USER, max_tokens=1, extra_body={"cache_salt": "boundary"}
        )
        seen = next(item for item in api.engine()["seen"] if item.get("cache_salt") == "boundary")
        boundary = seen["turn_boundary"]
        im_start = 3
        assert seen["token_ids"][boundary] == im_start
        assert im_start not in seen["token_ids"][boundary + 1 :]


class TestErrors:
    def test_a_wrong_value_is_a_bad_request_with_param(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="tiny", messages=USER, temperature=9)
        assert caught.value.param == "temperature"
        assert caught.value.type == "invalid_request_error"

    def test_a_prompt_that_is_too_long_says_context_length_exceeded(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="tiny", prompt="x " * 500)
        assert caught.value.code == "context_length_exceeded"
        assert "128" in caught.value.message

    def test_an_unknown_model_is_not_found(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="gpt-9", messages=USER)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")

    @pytest.mark.parametrize("stream", [False, True])
    def test_what_the_engine_refuses_has_its_status_also_for_a_stream(
        self, client: openai.OpenAI, stream: bool
    ) -> None:
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(
                model="tiny", prompt="x", stream=stream, extra_body={"cache_salt": "reject"}
            )
        assert caught.value.code == "over_capacity"
        assert caught.value.response.headers["retry-after"] == "7"

    def test_a_failure_in_the_engine_is_an_internal_error(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.InternalServerError):
            client.completions.create(model="tiny", prompt="x", extra_body={"cache_salt": "fail"})

    def test_a_failure_inside_a_stream_is_raised_by_the_client(self, client: openai.OpenAI) -> None:
        stream = client.chat.completions.create(
            model="tiny", messages=USER, stream=True, extra_body={"cache_salt": "fail+slow"}
        )
        with pytest.raises(openai.APIError, match="engine failed"):
            list(stream)

    def test_a_schema_that_nothing_can_follow_is_refused(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="Invalid type") as caught:
            client.chat.completions.create(
                model="tiny",
                messages=USER,
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "foo"}},
                },
            )
        assert (caught.value.param, caught.value.code) == ("response_format", "invalid_output_grammar")

    def test_tools_are_refused_where_the_chat_template_takes_none(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="chat template") as caught:
            client.chat.completions.create(
                model="tiny", messages=USER, tools=[{"type": "function", "function": {"name": "add"}}]
            )
        assert caught.value.param == "tools"

    def test_a_refusal_of_the_template_is_a_bad_request(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="no refusals here") as caught:
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "refuse me"}])
        assert caught.value.param == "messages"


async def test_fifty_streams_at_once_do_not_mix(api: ApiProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="any", max_retries=0) as client:

        async def one(number: int) -> tuple[str, str]:
            word = f"word{number:02d}"
            text = ""
            stream = await client.completions.create(
                model="tiny", prompt=f"{word} ", max_tokens=20, stream=True
            )
            async for chunk in stream:
                text += chunk.choices[0].text
            return word, text

        for word, text in await asyncio.gather(*(one(number) for number in range(50))):
            assert text.startswith(f"{word} {word}"[: len(text)])
            assert text.replace(word, "").strip(" word0123456789") == ""
