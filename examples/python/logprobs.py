"""How certain the model was of each token, and which tokens came next in its order.

Serve a model first: `mambaserve serve builtin://tiny-recall`. MAMBASERVE_URL names another server.
"""

import math
import os

from openai import OpenAI

URL = os.environ.get("MAMBASERVE_URL", "http://127.0.0.1:8000")

with OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("MAMBASERVE_API_KEY", "none")) as client:
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "What is 17 + 25?"}],
        max_tokens=8,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    for token in answer.choices[0].logprobs.content:
        others = ", ".join(f"{each.token!r} {math.exp(each.logprob):.3f}" for each in token.top_logprobs)
        print(f"{token.token!r}: {others}")
