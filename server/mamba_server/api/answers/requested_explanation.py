"""`RequestedExplanation`: the explanation that one request asks for, given at the end of its answer.

The endpoints make one for a request with the header `X-Mambaserve-Explain: 1`, and none for others.
`RecentExplanations` keeps the explanations of the last such requests for the admin API.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from mamba_edge.api_keys import KeyFile
from mamba_edge.exchange.explain_header import Elsewhere, parse_elsewhere
from mamba_edge.exchange.request_context import RequestContext
from mamba_server.api.answers.active_request import ChoiceUpdate
from mamba_server.api.answers.prefix_explanation import explanation_body
from mamba_server.api.answers.responses import VendorBody
from mamba_server.api.requests.hand_over_header import comes_from_gateway
from mamba_server.wire import AddRequest, PrefixExplanation
from mamba_text.tokenizer import Tokenizer


def described(
    tokenizer: Tokenizer,
    adds: Sequence[AddRequest],
    explanations: Mapping[str, PrefixExplanation],
    elsewhere: Elsewhere | None = None,
) -> list[dict[str, Any]]:
    """Return the JSON of the explanations of a request's prompts, in their order."""
    return [
        {"prompt": place, **explanation_body(tokenizer, add.token_ids, explanation, elsewhere)}
        for place, add in enumerate(adds)
        if (explanation := explanations.get(add.request_id)) is not None
    ]


class RequestedExplanation:
    """Explanation of what the prompts `adds` of one request resumed.

    `elsewhere` is the engine that, as a gateway knows, could have resumed more of the prompt; None if there
    is none. `keep` is called with the explanation at the end.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        adds: Sequence[AddRequest],
        elsewhere: Elsewhere | None,
        keep: Callable[[list[dict[str, Any]]], None],
    ) -> None:
        self._tokenizer, self._adds, self._elsewhere, self._keep = tokenizer, adds, elsewhere, keep
        self._open = sum(add.n for add in adds)
        """Number of choices whose last update has not come."""

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        adds: Sequence[AddRequest],
        answer_id: str,
        context: RequestContext,
        recent: "RecentExplanations",
        keys: KeyFile | None,
    ) -> Self:
        """Return the explanation of a request that asks for one; at the end `recent` keeps it.

        `answer_id` is the identifier of the answer. `keys` are the API keys; None = no key is needed.
        """
        # Only a gateway knows the caches of other engines; other clients could write anything.
        trusted = comes_from_gateway(context, keys)
        elsewhere = parse_elsewhere(context.header_values) if trusted else None
        return cls(tokenizer, adds, elsewhere, partial(recent.keep, context.request_id, answer_id))

    def is_due(self, update: ChoiceUpdate) -> bool:
        """Return whether the answer ends with `update`; called with each update once."""
        self._open -= update.finish_reason is not None
        return not self._open

    def vendor_body(self, explanations: Mapping[str, PrefixExplanation]) -> VendorBody:
        """Return the field of the answer, and keep the explanation."""
        explained = described(self._tokenizer, self._adds, explanations, self._elsewhere)
        self._keep(explained)
        return VendorBody(explained)


class RecentExplanations:
    """Keeps the explanations of the last requests that asked for one.

    They are found by the identifiers of request and answer.
    """

    MOST = 256
    """Most requests whose explanations are kept."""

    def __init__(self) -> None:
        self._answers: dict[str, str] = {}
        """Identifier of the answer, by the identifier of its request."""
        self._kept: OrderedDict[str, tuple[str, list[dict[str, Any]]]] = OrderedDict()
        """Identifier of the request, and explanations, by identifier of the answer."""

    def keep(self, request_id: str, answer_id: str, explanations: list[dict[str, Any]]) -> None:
        """Keep the explanations of one request, and drop the oldest if there are too many."""
        self._answers[request_id] = answer_id
        self._kept[answer_id] = request_id, explanations
        if len(self._kept) > self.MOST:
            oldest, (request, _) = self._kept.popitem(last=False)
            # A client may send one request id twice: the later answer keeps it.
            if self._answers.get(request) == oldest:
                del self._answers[request]

    def find(self, name: str) -> list[dict[str, Any]] | None:
        """Return the explanations of the request or answer with the identifier `name`.

        None means that none is kept.
        """
        # The server makes the identifiers of answers, and clients those of requests.
        entry = self._kept.get(name) or self._kept.get(self._answers.get(name, ""))
        return entry[1] if entry is not None else None
