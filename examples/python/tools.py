"""A tool that the model calls, and an answer that uses its result.

Serve a model first: `mambaserve serve MODEL`, with one that was trained to call tools. The shipped model was
not, so the call is forced here, and its arguments make no sense. MAMBASERVE_URL names another server.
"""

import json
import os

from openai import OpenAI

URL = os.environ.get("MAMBASERVE_URL", "http://127.0.0.1:8000")
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Return the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def weather(city: str) -> str:
    """Return what a weather service would say."""
    return {"Oslo": "snow", "Lima": "fog"}[city]


with OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("MAMBASERVE_API_KEY", "none")) as client:
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": "How is the weather in Oslo?"}]
    answer = client.chat.completions.create(
        model=model, messages=messages, tools=[WEATHER], tool_choice="required", max_tokens=128
    )
    message = answer.choices[0].message
    messages.append(message)
    for call in message.tool_calls:
        result = weather(**json.loads(call.function.arguments))
        print(f"{call.function.name}({call.function.arguments}) = {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=32)
    print(answer.choices[0].message.content)
