"""An answer token by token, and how many tokens it took.

Serve a model first: `mambaserve serve builtin://tiny-recall`. MAMBASERVE_URL names another server.
"""

import os

from openai import OpenAI

URL = os.environ.get("MAMBASERVE_URL", "http://127.0.0.1:8000")

with OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("MAMBASERVE_API_KEY", "none")) as client:
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Count from 3 to 9."}],
        max_tokens=64,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for event in stream:
        if event.choices:
            print(event.choices[0].delta.content or "", end="", flush=True)
        if event.usage:
            print(f"\n{event.usage.completion_tokens} tokens")
