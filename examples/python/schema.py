"""An answer in a form: every token is one that the schema allows, so the answer can be parsed.

Serve a model first: `mambaserve serve builtin://tiny-recall`. MAMBASERVE_URL names another server.
"""

import os
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel

URL = os.environ.get("MAMBASERVE_URL", "http://127.0.0.1:8000")


class Ticket(BaseModel):
    """A complaint, with the facts that a support desk needs."""

    product: Literal["lamp", "boat", "piano"]
    urgent: bool


with OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("MAMBASERVE_API_KEY", "none")) as client:
    model = client.models.list().data[0].id
    answer = client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": "My boat leaks, and I am on it."}],
        response_format=Ticket,
        max_tokens=128,
        temperature=0,
    )
    print(repr(answer.choices[0].message.parsed))
