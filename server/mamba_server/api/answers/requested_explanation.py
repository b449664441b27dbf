"""`RequestedExplanation`: the explanation that one request asks for, given at the end of its answer.

The endpoints make one for a request with the header, and none for others.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mamba_edge.exchange.explain_header import Elsewhere
from mamba_server.api.answers.active_request import ChoiceUpdate
from mamba_server.api.answers.prefix_explanation import explanation_body
from mamba_server.api.answers.responses import VendorBody
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

    `elsewhere`: the engine that a gateway knows to have more; `keep`: called with the explanation at the end.
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

    def is_due(self, update: ChoiceUpdate) -> bool:
        """Return whether the answer ends with `update`; called with each update once."""
        self._open -= update.finish_reason is not None
        return not self._open

    def vendor_body(self, explanations: Mapping[str, PrefixExplanation]) -> VendorBody:
        """Return the field of the answer, and keep the explanation."""
        explained = described(self._tokenizer, self._adds, explanations, self._elsewhere)
        self._keep(explained)
        return VendorBody(explained)
