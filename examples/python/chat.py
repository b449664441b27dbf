"""One question and its answer, by the official OpenAI client.

Serve a model first: `mambaserve serve builtin://tiny-recall`. MAMBASERVE_URL names another server.
"""

import os

from openai import OpenAI

URL = os.environ.get("MAMBASERVE_URL", "http://127.0.0.1:8000")

with OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("MAMBASERVE_API_KEY", "none")) as client:
    model = client.models.list().data[0].id
    messages = [
        {"role": "system", "content": "Facts:\nlamp: green\nkey: iron\nboat: red"},
        {"role": "user", "content": "What is the key?"},
    ]
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=32, temperature=0)
    print(answer.choices[0].message.content)

    # The next turn sends the whole conversation again; the server resumes from the state that it kept.
    messages += [
        {"role": "assistant", "content": answer.choices[0].message.content},
        {"role": "user", "content": "What is the boat?"},
    ]
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=32, temperature=0)
    print(answer.choices[0].message.content)
    details = answer.usage.prompt_tokens_details
    print(f"{details.cached_tokens} of {answer.usage.prompt_tokens} prompt tokens resumed")
