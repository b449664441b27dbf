"""Asks a server by a client library for several providers, and prints what the library understood as JSON.

Runs with the interpreter of the clients' own environment: `python other_clients.py LIBRARY URL MODEL`. It
imports nothing of ours, and nothing about a client is changed.
"""

import asyncio
import json
import sys
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

KEY = "none"
QUESTION = "lamp: red"


class Colour(BaseModel):
    """The colour of a lamp."""

    model_config = ConfigDict(extra="forbid")  # a model as small as the shipped one writes more keys

    name: Literal["red", "blue"]
    shade: Literal[1, 2]


def langchain_openai(url: str, model: str) -> dict[str, Any]:
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    chat = ChatOpenAI(base_url=f"{url}/v1", api_key=KEY, model=model, temperature=0, max_tokens=200)
    responses = ChatOpenAI(
        base_url=f"{url}/v1", api_key=KEY, model=model, use_responses_api=True, max_tokens=200
    )
    tools = chat.bind_tools([Colour], tool_choice="any", parallel_tool_calls=False)
    vectors = OpenAIEmbeddings(
        base_url=f"{url}/v1", api_key=KEY, model=model, check_embedding_ctx_length=False
    )
    return {
        "text": chat.invoke(QUESTION).content,
        "streamed": "".join(str(part.content) for part in chat.stream(QUESTION)),
        "parsed": chat.with_structured_output(Colour, method="json_schema").invoke(QUESTION).model_dump(),
        "call": tools.invoke(QUESTION).tool_calls[0]["args"],
        "responses": responses.invoke(QUESTION).text,
        "vectors": len(vectors.embed_documents(["a", "b"])),
    }


def langchain_anthropic(url: str, model: str) -> dict[str, Any]:
    from langchain_anthropic import ChatAnthropic

    chat = ChatAnthropic(base_url=url, api_key=KEY, model=model, max_tokens=200)
    tools = chat.bind_tools([Colour], tool_choice="any")
    return {
        "text": chat.invoke(QUESTION).content,
        "streamed": "".join(str(part.text) for part in chat.stream(QUESTION)),
        "call": tools.invoke(QUESTION).tool_calls[0]["args"],
    }


def litellm(url: str, model: str) -> dict[str, Any]:
    import litellm

    litellm.telemetry = False
    messages = [{"role": "user", "content": QUESTION}]
    asked = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": KEY, "messages": messages}
    whole = litellm.completion(**asked, temperature=0, max_tokens=20)
    parts = litellm.completion(**asked, temperature=0, max_tokens=20, stream=True)
    parsed = litellm.completion(**asked, max_tokens=200, response_format=Colour)
    claude = litellm.completion(
        model=f"anthropic/{model}", api_base=url, api_key=KEY, messages=messages, max_tokens=20
    )
    ranked = litellm.rerank(
        model=f"cohere/{model}", api_base=url, api_key=KEY, query=QUESTION, top_n=1,
        documents=["a bicycle", QUESTION],
    )  # fmt: skip
    return {
        "text": whole.choices[0].message.content,
        "streamed": "".join(part.choices[0].delta.content or "" for part in parts),
        "parsed": json.loads(parsed.choices[0].message.content),
        "claude": claude.choices[0].message.content,
        "ranked": [[each["index"], round(each["relevance_score"], 4)] for each in ranked.results],
    }


def cohere(url: str, model: str) -> dict[str, Any]:
    import cohere

    documents = ["a bicycle", QUESTION]
    client = cohere.ClientV2(api_key=KEY, base_url=url)
    ranked = client.rerank(model=model, query=QUESTION, documents=documents, top_n=1)
    return {"ranked": [[each.index, round(each.relevance_score, 4)] for each in ranked.results]}


def pydantic_ai(url: str, model: str) -> dict[str, Any]:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{url}/v1", api_key=KEY)
    settings: Any = {"max_tokens": 200, "temperature": 0}
    chat, responses = (
        kind(model, provider=provider, settings=settings) for kind in (OpenAIChatModel, OpenAIResponsesModel)
    )

    async def streamed() -> str:
        async with Agent(chat).run_stream(QUESTION) as run:
            return str(await run.get_output())

    return {
        "text": Agent(chat).run_sync(QUESTION).output,
        "streamed": asyncio.run(streamed()),
        "called": Agent(chat, output_type=Colour).run_sync(QUESTION).output.model_dump(),
        "parsed": Agent(chat, output_type=NativeOutput(Colour)).run_sync(QUESTION).output.model_dump(),
        "responses": Agent(responses).run_sync(QUESTION).output,
    }


def instructor(url: str, model: str) -> dict[str, Any]:
    import instructor
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY)
    answers = {}
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        answers[mode.name] = (
            instructor.from_openai(client, mode=mode)
            .create(
                model=model, response_model=Colour, max_tokens=200, max_retries=0,
                messages=[{"role": "user", "content": QUESTION}],
            )
            .model_dump()
        )  # fmt: skip
    return answers


def llama_index(url: str, model: str) -> dict[str, Any]:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.program import FunctionCallingProgram
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.llms.openai_like import OpenAILike

    about = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 4096}
    chat = OpenAILike(model=model, api_base=f"{url}/v1", api_key=KEY, temperature=0, max_tokens=200, **about)
    vectors = OpenAILikeEmbedding(model_name=model, api_base=f"{url}/v1", api_key=KEY)
    messages = [ChatMessage(role="user", content=QUESTION)]
    program = FunctionCallingProgram.from_defaults(
        output_cls=Colour, prompt_template_str=QUESTION, llm=chat, tool_required=True
    )
    return {
        "text": chat.chat(messages).message.content,
        "streamed": "".join(part.delta or "" for part in chat.stream_chat(messages)),
        "called": program().model_dump(),
        "vectors": len(vectors.get_text_embedding_batch(["a", "b"])),
    }


LIBRARIES = {
    each.__name__: each
    for each in (
        langchain_openai,
        langchain_anthropic,
        litellm,
        cohere,
        pydantic_ai,
        instructor,
        llama_index,
    )
}
"""Functions by the names of the libraries that they use."""

if __name__ == "__main__":
    print(json.dumps(LIBRARIES[sys.argv[1]](sys.argv[2], sys.argv[3])))
