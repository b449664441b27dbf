"""Operators that are left to torch by name, as seen by who serves on Triton's kernels (here interpreted)."""

import re
import urllib.request

import pytest

from servers import Command, call

pytestmark = pytest.mark.slow

SERVE = ("serve", "--model", "builtin://tiny-recall", "--device", "cpu", "--port", "0", "--admin-port", "0")


def kernels(choice: str) -> dict[str, str]:
    return {"MAMBASERVE_KERNELS": choice, "TRITON_INTERPRET": "1"}


def test_a_server_says_which_operators_are_left_out_and_answers() -> None:
    sizes = ("--arena-bytes", "64Mi", "--max-running-requests", "2")
    with Command(*SERVE, *sizes, env=kernels("triton,-gated_norm,-kv_write")) as command:
        match = command.wait_for(r"ready: \S+ at (http://\S+)/v1 \(admin (http://[^)]+)\)")
        asked = {"model": "tiny-recall", "prompt": "hello", "max_tokens": 2, "temperature": 0}
        status, answer = call(f"{match[1]}/v1/completions", asked, timeout=120)
        assert (status, answer["usage"]["completion_tokens"]) == (200, 2)
        plan = call(f"{match[2]}/admin/plan")[1]
        assert (plan["kernels"], plan["kernelsLeftOut"]) == (
            "triton", {"gated_norm": "asked", "kv_write": "asked"},
        )  # fmt: skip
        assert plan["decodeSteps"] == {"captured": 0, "issued": 2}
        with urllib.request.urlopen(f"{match[1]}/metrics") as page:
            text = page.read().decode()
    left_out = re.findall(r'mambaserve_kernels_left_out\{cause="asked",.*operator="(\w+)"\} 1\.0', text)
    assert left_out == ["gated_norm", "kv_write"]
    assert re.search(r'mambaserve_decode_steps\{kind="issued",.*\} 2\.0', text)


def test_a_name_that_no_operator_has_ends_the_start_with_the_names() -> None:
    with Command(*SERVE, env=kernels("auto,-experts")) as command:
        assert command.wait() == 2
        assert re.search("no operator experts to leave out; choose from activate, .*moe", command.output)
