"""Python interface for researchers: hybrid models in a program or a notebook, with readable states.

```python
from mambaserve import LLM

with LLM("builtin://tiny-recall") as llm:
    [answer] = llm.generate("The capital of Norway is", max_tokens=8, temperature=0)
    print(answer.text)
```
"""

from mamba_cli.extras import missing_extra

try:
    from mambaserve.answers import Answer, Choice, Score
    from mambaserve.errors import EngineEnded, LlmError, RequestRefused, StateMismatch
    from mambaserve.llm import LLM
    from mambaserve.recurrent_state import RecurrentState
except ModuleNotFoundError as error:
    if (missing := missing_extra(error, "mambaserve.LLM")) is None:
        raise
    raise ModuleNotFoundError(str(missing), name=error.name) from error

__all__ = [
    "LLM",
    "Answer",
    "Choice",
    "EngineEnded",
    "LlmError",
    "RecurrentState",
    "RequestRefused",
    "Score",
    "StateMismatch",
]
