"""Trace files of both formats."""

import pytest

from mamba_cli.bench.traces import Arrival, TraceError, parse, replay

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109

2023-11-16 18:15:47.0000000,12,1
"""
MOONCAKE = """{"timestamp": 3000, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [0, 2], "more": true}
"""


def test_azure_rows_become_arrivals_in_order_from_zero() -> None:
    found = parse(AZURE.splitlines())
    assert [(a.input_tokens, a.output_tokens) for a in found] == [(374, 44), (12, 1), (396, 109)]
    assert [a.at for a in found] == pytest.approx([0, 0.31941, 4.314579], abs=1e-5)


def test_times_with_an_offset_are_read_as_those_without() -> None:
    """Azure's traces of 2024 carry one, those of 2023 do not."""
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2024-05-10 00:00:00.009930+00:00,2162,5"]
    rows += ["2024-05-10 00:00:01+00:00,7,1", "2024-05-10 02:00:02.009930+02:00,8,2"]
    found = parse(rows)
    assert [(a.input_tokens, a.output_tokens) for a in found] == [(2162, 5), (7, 1), (8, 2)]
    assert [a.at for a in found] == pytest.approx([0, 0.99007, 2], abs=1e-5)


@pytest.mark.parametrize("text", [AZURE, MOONCAKE], ids=["azure", "mooncake"])
def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(text: str) -> None:
    lines = [line + "\r\n" for line in text.splitlines()]
    assert parse(["\ufeff" + lines[0], *lines[1:]]) == parse(text.splitlines())


def test_a_header_without_rows_is_a_trace_of_nothing() -> None:
    assert parse(["TIMESTAMP, ContextTokens, GeneratedTokens"]) == []
    assert list(replay([], 256)) == []


def test_requests_of_one_moment_keep_their_order() -> None:
    lines = [f'{{"timestamp": 5, "input_length": {n}, "output_length": 1}}' for n in range(1, 9)]
    assert [a.input_tokens for a in parse(lines)] == list(range(1, 9))


def test_mooncake_lines_become_arrivals_with_blocks() -> None:
    assert parse(MOONCAKE.splitlines()) == [Arrival(0.0, 600, 7, (0, 2)), Arrival(3.0, 1000, 5, (0, 1))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: the file is empty"),
        ("a,b\n1,2\n", "line 1: is neither the header"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "line 2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,1\n", "line 2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,1,2,3\n", "line 2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,1.5,2\n", "line 2: .*'1.5'"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,,2\n", "line 2"),
        ("\n\nTIMESTAMP,ContextTokens,GeneratedTokens\n\n2023-13-16 18:15:46,1,2\n", "line 5: .*month"),
        ('{"timestamp": 1, "input_length": 2}\n', "line 1.*output_length"),
        ('{"timestamp": "1", "input_length": 2, "output_length": 3}\n', "line 1: Expected `float`"),
        ('{"timestamp": 1, "input_length": 2.5, "output_length": 3}\n', "line 1: Expected `int`"),
        (
            '{"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": ["a"]}\n',
            "line 1: .*hash_ids",
        ),
        ('{"timestamp": 1, "input_length": 2, "output_length": 3}\n[1]\n', "line 2: Expected `object`"),
        ('{"timestamp": 1, "input_length": 2, "output_length": 3}\n{"tim', "line 2"),
    ],
)
def test_what_is_no_trace_is_refused_by_line(text, said) -> None:
    with pytest.raises(TraceError, match=said):
        parse(text.splitlines())


def test_a_replay_scales_times_and_cuts_lengths() -> None:
    made = list(replay(parse(MOONCAKE.splitlines()), 256, speed=10, max_input=550, max_output=6))
    assert [prompt.at for prompt in made] == [0, 0.3]
    assert [prompt.output_tokens for prompt in made] == [6, 5]
    assert [len(prompt.token_ids) for prompt in made] == [550, 550]
    assert made[0].token_ids[:512] == made[1].token_ids[:512]
    assert made[0].token_ids[512:520] != made[1].token_ids[512:520]


def test_a_replay_of_a_trace_without_blocks_shares_nothing() -> None:
    made = list(replay(parse(AZURE.splitlines()), 256))
    assert len({prompt.token_ids[:8] for prompt in made}) == 3


def test_the_limit_takes_the_first() -> None:
    arrivals = parse(AZURE.splitlines())
    assert [len(p.token_ids) for p in replay(arrivals, 256, limit=1)] == [374]
    assert [len(p.token_ids) for p in replay(arrivals, 256, limit=99)] == [374, 12, 396]


def test_requests_without_tokens_still_have_one() -> None:
    [made] = replay([Arrival(0, 0, 0)], 256)
    assert (len(made.token_ids), made.output_tokens) == (1, 1)


def test_a_speed_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="speed"):
        list(replay([], 256, speed=0))
