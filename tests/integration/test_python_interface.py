"""`mambaserve.LLM`: answers, scores and states of the shipped model, as a researcher's program has them."""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from mambaserve import LLM, EngineEnded, RequestRefused, StateMismatch
from matrix_size import LARGE, only_in_gates

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/python"
PAGE = (ROOT / "docs/howto/use-from-python.md").read_text()
FACTS = "Ann lives in Oslo. Bob lives in Rome. Eve lives in Bonn. "
QUESTION = "Where does Bob live?"
GREEDY = {"max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("builtin://tiny-recall", quiet=True, page_size=1, batch_invariant=True) as loaded:
        yield loaded


@pytest.mark.slow
def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [f"{FACTS}{number} is" for number in range(60)]
    together = llm.generate(prompts, **GREEDY)
    assert [answer.text for answer in together[::12]] == [
        llm.generate(prompt, **GREEDY)[0].text for prompt in prompts[::12]
    ]
    assert sum(answer.cached_tokens for answer in together) > 40 * len(FACTS) // 2


@pytest.mark.slow
def test_fields_of_the_api_reach_the_engine_and_a_refusal_names_its_prompt(llm: LLM) -> None:
    [answer] = llm.chat([{"role": "user", "content": "Hello"}], n=2, seed=7, max_tokens=4)
    assert len(answer.choices) == 2
    cities = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
    schema = {"name": "x", "schema": {**cities, "additionalProperties": False}}
    form = {"type": "json_schema", "json_schema": schema}
    [typed] = llm.chat([{"role": "user", "content": QUESTION}], response_format=form, max_tokens=40)
    assert json.loads(typed.text)["city"] in ("Oslo", "Rome")
    with pytest.raises(RequestRefused, match="context") as refused:
        llm.generate(["fits", "x" * 10_000], max_tokens=1)
    assert (refused.value.status, refused.value.index) == (400, 1)


@pytest.mark.slow
def test_a_score_is_the_sum_of_what_each_token_costs(llm: LLM) -> None:
    [text, ids] = llm.score([FACTS, llm.tokens(FACTS)])
    assert "".join(text.tokens) == FACTS
    assert text.total == ids.total == sum(text.logprobs) < 0
    [whole] = llm.generate(FACTS, max_tokens=0, echo=True, logprobs=0)
    assert whole.choices[0].logprobs is not None
    assert tuple(whole.choices[0].logprobs["token_logprobs"][1:]) == text.logprobs


@pytest.mark.slow
def test_an_answer_from_a_state_is_that_of_the_whole_prompt(llm: LLM) -> None:
    state = llm.state(FACTS)
    whole, other = llm.generate([state.token_ids + llm.tokens(text) for text in (QUESTION, "Eve?")], **GREEDY)
    resumed = llm.generate_from(state, [QUESTION, "Eve?"], **GREEDY)
    assert [answer.text for answer in resumed] == [whole.text, other.text]
    assert [answer.cached_tokens for answer in resumed] == [state.depth] * 2


@pytest.mark.slow
def test_a_changed_state_answers_otherwise_and_only_where_it_was_asked_for(llm: LLM, tmp_path: Path) -> None:
    state, foreign = llm.state(FACTS), llm.state("Once upon a time there was a king. ")
    logprobs = {**GREEDY, "logprobs": 1}
    [before] = llm.generate_from(state, QUESTION, **logprobs)
    zeros = state
    for layer in range(state.layers):
        zeros = zeros.with_recurrent(layer, np.zeros(state.shape, np.float32))
    [changed] = llm.generate_from(zeros, QUESTION, **logprobs)
    assert changed.choices[0].logprobs != before.choices[0].logprobs
    [after] = llm.generate_from(state, QUESTION, **logprobs)
    assert after == before

    assert state.distances(state) == [0.0] * state.layers
    assert min(state.distances(foreign)) > 0
    grafted = state.grafted(foreign, [0])
    assert np.array_equal(grafted.recurrent(0), foreign.recurrent(0))
    assert np.array_equal(grafted.window(0), foreign.window(0))
    assert np.array_equal(grafted.recurrent(1), state.recurrent(1))
    grafted.write(tmp_path / "grafted.session")
    assert llm.load_state(tmp_path / "grafted.session") == grafted


@pytest.mark.slow
def test_what_fits_no_state_is_refused(llm: LLM, tmp_path: Path) -> None:
    state = llm.state(FACTS)
    with pytest.raises(StateMismatch, match="shape"):
        state.with_recurrent(0, np.zeros((1, 2), np.float32))
    with pytest.raises(IndexError, match=f"{state.layers} recurrent layers"):
        state.recurrent(state.layers)
    state.write(tmp_path / "damaged")
    whole = bytearray((tmp_path / "damaged").read_bytes())
    whole[len(whole) // 2] ^= 1
    (tmp_path / "damaged").write_bytes(whole)
    with pytest.raises(StateMismatch, match="damaged"):
        llm.load_state(tmp_path / "damaged")


NOTEBOOK = f"""
import json, psutil

names = {{}}
for cell in json.load(open({str(EXAMPLES / "states.ipynb")!r}))["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]).removesuffix("llm.close()"), names)
print("engines", *[child.pid for child in psutil.Process().children(recursive=True)], flush=True)
input()
"""
"""Program that runs the notebook but for its last line, and keeps its engine."""


@only_in_gates("the program beside the notebook runs in each run, and so does each call of the notebook")
@pytest.mark.slow
def test_the_notebook_runs_and_its_engine_dies_with_the_program(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=tmp_path,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        lines = iter(child.stdout)
        last = next((line for line in lines if line.startswith("engines ")), "")
        engines = [psutil.Process(int(pid)) for pid in last.split()[1:]]
        assert engines
        os.kill(child.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(engines, timeout=30)
    assert not alive


@pytest.mark.slow
def test_an_engine_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineEnded, match="does not exist"):
        LLM(str(tmp_path / "nothing"), quiet=True)
    with pytest.raises(EngineEnded, match="'tpu' is not one of"):
        LLM("builtin://tiny-recall", quiet=True, device="tpu")


@pytest.mark.slow
def test_the_example_runs_as_it_stands() -> None:
    runpy.run_path(str(EXAMPLES / "generate.py"), run_name="__main__")


def test_without_lm_eval_its_command_and_its_example_name_the_extra_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "mambaserve.lm_eval", raising=False)
    sentence = r"error: mambaserve\.lm_eval needs the extra 'lm-eval', .* install '.*\[server,lm-eval\]'\n?"
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / "evaluate.py"), run_name="__main__")
    assert re.fullmatch(sentence, str(ended.value.code))
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("mambaserve.lm_eval", run_name="__main__")
    assert ended.value.code == 2
    assert re.fullmatch(sentence, capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.skipif(not LARGE, reason="each program loads the model; what they call is tested above")
def test_the_programs_of_the_page_and_the_example_of_states_run_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for program in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(program, names)
    assert (tmp_path / "changed.session").is_file()
    runpy.run_path(str(EXAMPLES / "states.py"), run_name="__main__")
    assert "distance by layer" in capsys.readouterr().out
