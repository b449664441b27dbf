"""Explanations of prompts of one server: kept for requests that asked for one, and made for prompts on trial.

A prompt on trial is only matched with the cache and not computed. `mambaserve why` reads both kinds over the
admin port. The public API shows an explanation in the answer alone.
"""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mamba_edge.app.application import JsonResponse
from mamba_edge.errors import ApiError
from mamba_edge.exchange.request_context import context_of
from mamba_server.api.answers.requested_explanation import described
from mamba_server.api.conversation import read_conversation, tokenized
from mamba_server.api.requests.errors import AdminRefused
from mamba_server.api.serving import Serving
from mamba_server.wire import PrefixExplanation


class NoExplanation(ApiError):
    """No explanation is kept under the identifier in the request."""

    status, kind, code = 404, "invalid_request_error", "no_explanation"


class ExplanationEndpoints:
    """Answers the admin requests that ask why a prompt was resumed no further."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def recent(self, name: str) -> dict[str, Any]:
        """Return the explanation of a recent request by its identifier or the identifier of its answer.

        Only requests that asked for an explanation have one. Raises NoExplanation.
        """
        kept = self._serving.explanations
        explanations = kept.find(name)
        if explanations is None:
            raise NoExplanation(
                f"no explanation of {name[:128]!r} is kept here: only requests with the header "
                f"X-Mambaserve-Explain: 1 are explained, and the last {kept.MOST} of them are kept"
            )
        return {"explain": explanations}

    async def dry_run(self, request: Request, client: str = "") -> Response:
        """Explain what the prompt of the body would resume now; nothing is computed.

        `client`: name of the API key whose texts may be shown.
        """
        serving, context = self._serving, context_of(request.scope)
        fields, size = await read_conversation(serving, request)
        chosen = await tokenized(serving, fields, size, "an explanation")
        add = chosen.add_request("explain", client=client, arrival=context.arrival)
        call = {"salt": add.salt, "client": client, "token_ids": add.token_ids.tobytes()}
        reply = await serving.engine.admin("explain", call)
        if reply.status >= 400:
            raise AdminRefused(reply)
        explanation = msgspec.convert(reply.body["explanation"], PrefixExplanation)
        assert serving.text is not None
        explanations = described(serving.text.tokenizer, [add], {add.request_id: explanation})
        return JsonResponse({"explain": explanations})
