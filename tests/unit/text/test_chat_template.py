"""Chat templates: rendering, the sandbox, and the turn boundary."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mamba_api.openai import ChatCompletionRequest
from mamba_text.chat_template import TOOL_TEMPLATE, ChatTemplate
from mamba_text.errors import BadTemplate, TemplateRefused
from mamba_text.prompt import chat_prompt, encoded_chat
from mamba_text.reasoning import THINK, ReasoningStart
from mamba_text.text_archive import TextArchive, load_text_side
from mamba_text.tokenizer import Tokenizer
from tiny_model import TEMPLATE, write_model

USER = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_model(tmp_path_factory.mktemp("model") / "tiny"))


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>"}, now=lambda: datetime(2026, 11, 21))


def test_messages_become_the_prompt() -> None:
    text = template(TEMPLATE).render(USER)
    assert text == "<s><|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ strftime_now('%d %b %Y') }}", "21 Nov 2026"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "hello"}]'),
        ("{{ {'a': '<ü>'} | tojson }}", '{"a": "<ü>"}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{% for m in messages %}{% break %}{% endfor %}x", "x"),
        ("{% if tools %}t{% endif %}{{ missing }}", ""),
        ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}!{% endfor %}", "hello!"),
        ("{%- set ns = namespace(n=0) -%}{% set ns.n = 2 %}{{ ns.n }}", "2"),
    ],
)
def test_what_templates_of_the_field_use_is_there(source: str, expected: str) -> None:
    assert template(source).render(USER) == expected


def test_a_field_of_a_message_is_what_jinja_itself_finds() -> None:
    """A key, an attribute of all dicts before a key with its name, or nothing."""
    source = (
        "{% set m = messages[0] %}{{ m.role }} {{ m.gone is defined }} {{ m.gone or 'none' }} {{ m.items() }}"
        "{{ m.keys is callable }} {{ m.tool.name }} {{ m.__class__ is defined }} {{ m.get('role') }}"
    )
    messages = [{"role": "user", "keys": 1, "tool": {"name": "f"}}]
    plain = ImmutableSandboxedEnvironment().from_string(source).render(messages=messages)
    assert template(source).render(messages) == plain


def test_raise_exception_is_a_refusal_in_the_templates_words() -> None:
    with pytest.raises(TemplateRefused, match="roles must alternate"):
        template("{{ raise_exception('roles must alternate') }}").render(USER)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ messages[0].content.missing.deeper }}",
        "{{ 1 / 0 }}",
        "{{ [] + 1 }}",
        "{{ range(10000000) | list | length }}",
    ],
)
def test_what_the_sandbox_forbids_is_a_refusal(source: str) -> None:
    with pytest.raises(TemplateRefused):
        template(source).render([dict(USER[0])])


def test_the_sandbox_shows_no_internals() -> None:
    assert "class" not in template("{{ messages.__class__ }}").render(USER)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ messages[0].content | dictsort }}", "no attribute 'items'"),
        ("{{ '{0} {1}'.format('only one') }}", "out of range"),
        ("{{ messages[0].content.encode('ascii') }}", "ascii"),
        ("{{ 1 // (messages | length - 1) }}", "zero"),
        ("{{ messages[7].content }}", "no element 7"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
        ("{{ messages | tojson(bogus=1) }}", "bogus"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "recursion"),
    ],
)
def test_whatever_a_template_fails_with_is_a_refusal_that_says_it(source: str, said: str) -> None:
    with pytest.raises(TemplateRefused, match=said):
        template(source).render([{"role": "user", "content": "h\u00e9"}])


def test_a_template_that_failed_once_renders_the_next_conversation() -> None:
    made = template("{% if messages[0].content == 'x' %}{{ raise_exception('no') }}{% endif %}fine")
    with pytest.raises(TemplateRefused):
        made.render([{"role": "user", "content": "x"}])
    assert made.render(USER) == "fine"


def test_a_template_that_does_not_compile_is_told_with_its_file(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "tiny", template="{% if %}")
    with pytest.raises(BadTemplate, match=r"chat_template\.jinja.*does not compile"):
        ChatTemplate.load(directory, Tokenizer.load(directory))


def test_variables_of_a_request_reach_the_template() -> None:
    assert template("{{ enable_thinking }}").render(USER, variables={"enable_thinking": False}) == "False"


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "tools", "bos_token"])
def test_variables_of_a_request_replace_nothing_of_ours(name: str) -> None:
    source = "{{ messages[0].content }}{{ add_generation_prompt }}{{ tools }}{{ bos_token }}"
    assert template(source).render(USER, variables={name: "mine"}) == "helloTrueNone<s>"


@pytest.mark.parametrize(
    ("source", "options", "opening"),
    [
        (
            "{{ messages[0].content }}\n{% if add_generation_prompt %}me: <think>\n{% endif %}",
            {},
            "me: <think>\n",
        ),
        ("{{ messages[0].content }} <think>", {}, ""),
        ("{% if add_generation_prompt %}a\nme: <think>\n{% else %}b{% endif %}", {}, "me: <think>"),
        ("{{ messages[0].content }}", {"generation_prompt": False}, ""),
        ("{{ messages[0].content }} <end>", {"continue_final": True}, "hello"),
    ],
)
def test_a_prompt_tells_what_it_has_of_the_answer(
    tokenizer: Tokenizer, source: str, options: dict[str, bool], opening: str
) -> None:
    assert encoded_chat(template(source), tokenizer, USER, **options).opening == opening


class TestPins:
    def test_a_pin_is_where_the_text_of_its_messages_ends(self, tokenizer: Tokenizer) -> None:
        turns = [*USER, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "more"}]
        prompt = encoded_chat(template(TEMPLATE), tokenizer, turns, pinned={1: 300.0, 3: 60.0})
        shown = [template(TEMPLATE).render(turns[:count], generation_prompt=False) for count in (1, 3)]
        depths = [len(tokenizer.encode(text, special=False)) for text in shown]
        assert prompt.pins == ((depths[0], 300.0), (depths[1], 60.0))
        assert prompt.last(len(prompt.token_ids) - depths[0]).pins == ((depths[1] - depths[0], 60.0),)

    def test_a_wish_for_the_cache_changes_no_token(self, tokenizer: Tokenizer) -> None:
        source = "{% for message in messages %}{{ message | tojson }}{% endfor %}"
        plain, marked = (
            ChatCompletionRequest.model_validate({"messages": [{**USER[0], **more}]})
            for more in ({}, {"cache_control": {"type": "ephemeral"}})
        )
        prompts = [chat_prompt(template(source), tokenizer, request) for request in (plain, marked)]
        assert prompts[0].token_ids == prompts[1].token_ids
        assert [len(prompt.pins) for prompt in prompts] == [0, 1]


class TestTurnBoundary:
    def test_it_is_the_depth_just_before_the_generation_prompt(self, tokenizer: Tokenizer) -> None:
        prompt = encoded_chat(template(TEMPLATE), tokenizer, USER)
        closed = tokenizer.encode(template(TEMPLATE).render(USER, generation_prompt=False), special=False)
        assert prompt.token_ids[: prompt.turn_boundary] == closed

    def test_the_next_turn_shares_the_prompt_up_to_it(self, tokenizer: Tokenizer) -> None:
        first = encoded_chat(template(TEMPLATE), tokenizer, USER)
        turns = [*USER, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "more"}]
        second = encoded_chat(template(TEMPLATE), tokenizer, turns)
        boundary = first.turn_boundary
        assert 0 < boundary < len(first.token_ids)
        assert second.token_ids[:boundary] == first.token_ids[:boundary]

    def test_multi_byte_text_does_not_shift_it(self, tokenizer: Tokenizer) -> None:
        messages = [{"role": "user", "content": "世界 🎉👩‍👧 ü"}]
        prompt = encoded_chat(template(TEMPLATE), tokenizer, messages)
        closed = tokenizer.encode(template(TEMPLATE).render(messages, generation_prompt=False), special=False)
        assert prompt.turn_boundary == len(closed)

    def test_a_token_across_it_is_not_counted(self, tokenizer: Tokenizer) -> None:
        source = "{{ messages[0].content }}hel{% if add_generation_prompt %}lo{% endif %}"
        prompt = encoded_chat(template(source), tokenizer, [{"role": "user", "content": "a "}])
        text = tokenizer.decode(prompt.token_ids[: prompt.turn_boundary])
        assert "a hel".startswith(text)

    @pytest.mark.parametrize(
        "source",
        [
            "{{ messages[0].content }}",
            "{% if not add_generation_prompt %}x{% endif %}{{ messages[0].content }}",
            "{% if not add_generation_prompt %}{{ raise_exception('no') }}{% endif %}text",
        ],
    )
    def test_a_template_without_a_generation_prompt_has_none(self, tokenizer: Tokenizer, source: str) -> None:
        assert encoded_chat(template(source), tokenizer, USER).turn_boundary == 0

    def test_a_template_that_refuses_the_closed_conversation_has_none(self, tokenizer: Tokenizer) -> None:
        source = "{% if not add_generation_prompt %}{{ raise_exception('open ended') }}{% endif %}x: "
        prompt = encoded_chat(template(source), tokenizer, USER)
        assert prompt.turn_boundary == 0
        assert tokenizer.decode(prompt.token_ids) == "x: "

    def test_a_template_that_rewrites_the_end_has_none(self, tokenizer: Tokenizer) -> None:
        source = "hello {% if add_generation_prompt %}there, assistant:{% else %}(the end){% endif %}"
        assert encoded_chat(template(source), tokenizer, USER).turn_boundary == 0

    def test_the_tokenizer_adds_no_second_bos(self, tokenizer: Tokenizer) -> None:
        prompt = encoded_chat(template(TEMPLATE), tokenizer, USER)
        assert prompt.token_ids.count(tokenizer.bos_id or 0) == 1


class TestWhereItComesFrom:
    @staticmethod
    def load(directory: Path) -> ChatTemplate | None:
        return ChatTemplate.load(directory, Tokenizer.load(directory))

    def rendered(self, directory: Path) -> str:
        loaded = self.load(directory)
        assert loaded is not None
        return loaded.render(USER)

    def test_the_file_wins_over_the_tokenizer_config(self, tmp_path: Path) -> None:
        directory = write_model(tmp_path, template="file", tokenizer_config={"chat_template": "config"})
        assert self.rendered(directory) == "file"

    def test_the_tokenizer_config_is_next(self, tmp_path: Path) -> None:
        directory = write_model(tmp_path, template=None, tokenizer_config={"chat_template": "config"})
        assert self.rendered(directory) == "config"

    def test_of_several_the_default_is_taken(self, tmp_path: Path) -> None:
        several: list[dict[str, Any]] = [
            {"name": "tool_use", "template": "tools"},
            {"name": "default", "template": "plain"},
        ]
        directory = write_model(tmp_path, template=None, tokenizer_config={"chat_template": several})
        assert self.rendered(directory) == "plain"

    def test_a_json_file_is_read_too(self, tmp_path: Path) -> None:
        directory = write_model(tmp_path, template=None)
        (directory / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
        assert self.rendered(directory) == "json"

    def test_a_model_without_one_has_none(self, tmp_path: Path) -> None:
        assert self.load(write_model(tmp_path, template=None)) is None

    def test_a_template_that_is_no_text_is_refused(self, tmp_path: Path) -> None:
        directory = write_model(tmp_path, template=None, tokenizer_config={"chat_template": 5})
        with pytest.raises(BadTemplate, match="must be a string"):
            self.load(directory)

    @pytest.mark.parametrize("several", [["plain"], [{"name": "default", "template": "x"}, 5]])
    def test_a_list_of_anything_but_named_templates_is_refused(self, tmp_path: Path, several: Any) -> None:
        directory = write_model(tmp_path, template=None, tokenizer_config={"chat_template": several})
        with pytest.raises(BadTemplate, match=r"tokenizer_config\.json: .*list of named templates"):
            self.load(directory)

    def test_several_without_a_known_name_are_no_template(self, tmp_path: Path) -> None:
        several = [{"name": "rag", "template": "documents"}]
        directory = write_model(tmp_path, template=None, tokenizer_config={"chat_template": several})
        assert self.load(directory) is None

    @pytest.mark.parametrize("as_file", [False, True])
    def test_a_template_for_tools_is_taken_where_there_are_some(self, as_file: bool, tmp_path: Path) -> None:
        named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
        several = named[:1] if as_file else named
        directory = write_model(tmp_path, template=None, tokenizer_config={"chat_template": several})
        if as_file:
            (directory / TOOL_TEMPLATE).parent.mkdir()
            (directory / TOOL_TEMPLATE).write_text("tools")
        loaded = load_text_side(TextArchive.pack(directory).data).template
        assert loaded is not None
        assert [loaded.of(tools=tools).render(USER) for tools in (False, True)] == ["plain", "tools"]

    def test_a_template_for_tools_alone_serves_all(self, tmp_path: Path) -> None:
        several = [{"name": "tool_use", "template": "tools"}]
        directory = write_model(tmp_path, template=None, tokenizer_config={"chat_template": several})
        assert self.rendered(directory) == "tools"

    def test_a_file_that_is_not_utf_8_is_named(self, tmp_path: Path) -> None:
        directory = write_model(tmp_path)
        (directory / "chat_template.jinja").write_bytes(b"\xff\xfe{{ messages }}")
        with pytest.raises(BadTemplate, match=r"chat_template\.jinja: not readable as text") as caught:
            self.load(directory)
        assert caught.value.exit_code == 2

    def test_a_template_that_does_not_compile_is_named_wherever_it_is(self, tmp_path: Path) -> None:
        directory = write_model(tmp_path, template=None, tokenizer_config={"chat_template": "{% if %}"})
        with pytest.raises(BadTemplate, match=r"tokenizer_config\.json.*does not compile"):
            self.load(directory)


PARTIAL = [*USER, {"role": "assistant", "content": " The answer "}]


def test_a_continued_message_is_the_end_of_the_prompt(tokenizer: Tokenizer) -> None:
    made = encoded_chat(template(TEMPLATE), tokenizer, PARTIAL, continue_final=True)
    assert tokenizer.decode(made.token_ids, special=True).endswith("assistant\n The answer ")
    stripping = TEMPLATE.replace("{{ message['content'] }}", "{{ message['content'] | trim }}")
    made = encoded_chat(template(stripping), tokenizer, PARTIAL, continue_final=True)
    assert tokenizer.decode(made.token_ids, special=True).endswith("assistant\nThe answer")
    assert made.turn_boundary == 0


def test_a_message_that_is_not_shown_cannot_be_continued(tokenizer: Tokenizer) -> None:
    for content in ("", "gone"):
        with pytest.raises(TemplateRefused, match="cannot be continued"):
            encoded_chat(
                template("{{ messages[0].content }}"),
                tokenizer,
                [*USER, {"role": "assistant", "content": content}],
                continue_final=True,
            )


def test_without_generation_prompt_the_prompt_ends_with_the_last_message(tokenizer: Tokenizer) -> None:
    made = encoded_chat(template(TEMPLATE), tokenizer, USER, generation_prompt=False)
    assert tokenizer.decode(made.token_ids, special=True).endswith("hello<|im_end|>\n")


def test_a_prompt_that_is_refused_for_its_text_is_never_encoded(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(text: str) -> None:
        raise ValueError(f"{len(text)} characters")

    monkeypatch.setattr(tokenizer, "encoding", None)
    with pytest.raises(ValueError, match="characters"):
        encoded_chat(template(TEMPLATE), tokenizer, USER, check=refuse)


ENDING = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"


@pytest.mark.parametrize("said", ["e", "end", "<", "|", "d", "<|end", "I said <", ""])
def test_a_continued_message_that_also_stands_in_the_end_marker_ends_the_prompt(said: str) -> None:
    messages = [*USER, {"role": "assistant", "content": said}]
    assert template(ENDING).text(messages, continue_final=True) == f"<|user|>hello<|end|><|assistant|>{said}"


OPENING = (
    "{% for m in messages %}{% if not (loop.last and m.role == 'assistant') %}<|user|>{{ m.content }}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt or messages[-1].role == 'assistant' %}<|assistant|>"
    "<think>\n"
    "{% if messages[-1].role == 'assistant' %}{{ messages[-1].content }}{% endif %}{% endif %}{# </think> #}"
)


@pytest.mark.parametrize("continued", [True, False])
def test_thoughts_that_the_template_opens_in_front_of_the_last_message_are_what_the_answer_begins_with(
    tokenizer: Tokenizer, continued: bool
) -> None:
    messages = [*USER, {"role": "assistant", "content": "Well"}]
    made = encoded_chat(template(OPENING), tokenizer, messages, continue_final=continued)
    assert ReasoningStart.of(THINK, made.opening) is ReasoningStart.OPEN
