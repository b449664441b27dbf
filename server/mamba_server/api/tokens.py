"""The endpoints that turn texts into token ids and back, for which the engine computes nothing."""

from starlette.requests import Request
from starlette.responses import Response

from mamba_api.embeddings import DetokenizeRequest, TokenizeRequest
from mamba_api.openai import ChatCompletionRequest, CompletionRequest
from mamba_edge.app.application import JsonResponse
from mamba_edge.app.validation import translated
from mamba_edge.errors import NotReady
from mamba_edge.exchange.request_context import context_of
from mamba_server.api.requests.prompts import PromptBuilder
from mamba_server.api.serving import Serving
from mamba_text.prompt import TextProcessor

_OF_CHATS = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")


class TokenEndpoints:
    """Answers the requests that turn text into token ids of one served model, or back."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def tokenize(self, body: TokenizeRequest, request: Request) -> Response:
        """Return the token ids of a text, or of the prompt of a chat."""
        text, limits, context = self._text(body.model), self._serving.limits(), context_of(request.scope)
        with self._serving.admit(1, 1):
            builder = PromptBuilder(text, limits, self._serving.encoders, context.trace)
            if body.messages is not None:
                fields = {name: value for name in _OF_CHATS if (value := getattr(body, name)) is not None}
                chat = translated(ChatCompletionRequest.model_validate, fields)
                ids = (await builder.of_chat(chat, context.body_bytes)).token_ids
            else:
                completion = CompletionRequest(
                    prompt=body.prompt or "", add_special_tokens=body.add_special_tokens
                )
                ids = (await builder.of_completion(completion))[0].token_ids
        strings = [text.tokenizer.piece(token).text for token in ids] if body.return_token_strs else None
        answer = {"count": len(ids), "max_model_len": limits.max_model_len, "tokens": ids}
        return JsonResponse({**answer, "token_strs": strings})

    async def detokenize(self, body: DetokenizeRequest) -> Response:
        """Return the text of token ids, with special tokens."""
        text = self._text(body.model)
        self._serving.limits().check_ids("tokens", body.tokens)
        prompt = await self._serving.encoders.run(
            4 * len(body.tokens), lambda _: text.tokenizer.decode(body.tokens, special=True)
        )
        return JsonResponse({"prompt": prompt})

    def _text(self, model: str | None) -> TextProcessor:
        self._serving.check_model(model)
        if self._serving.text is None:
            raise NotReady("the tokenizer is not loaded yet")
        return self._serving.text
