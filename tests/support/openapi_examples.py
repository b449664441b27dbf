"""Requests made up from an OpenAPI document, whose answers may not leave it.

Import it inside of a test: schemathesis takes a second to import, and every process collects every test.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
]  # fmt: skip
LAST_EVENT = b"data: [DONE]\n\n"
PATIENCE = 300
"""Seconds for the document: it is made when it is first asked for, on a machine that may be busy."""


def document_of(server: Any) -> Any:
    """Return the document of a server: its URL, or an ASGI application."""
    openapi = schemathesis.openapi
    if isinstance(server, str):
        return openapi.from_url(f"{server}/openapi.json", timeout=PATIENCE)
    return _document_of_application(server)


@cache
def _document_of_application(application: Any) -> Any:
    """Read the document once for all operations of an application, which takes longer than the examples."""
    return schemathesis.openapi.from_asgi("/openapi.json", application, timeout=PATIENCE)


def stay_within_the_document(server: Any, path: str, method: str, examples: int) -> None:
    """Send `examples` requests to one operation; raise at the first undocumented answer."""
    call = {"base_url": server, "timeout": 20} if isinstance(server, str) else {}

    @settings(
        max_examples=examples,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    @given(case=document_of(server)[path][method].as_strategy())
    def one(case: schemathesis.Case) -> None:
        answer = case.call(**call)
        # No JSON, though all other events are: the checks take one kind of content for all.
        answer.content = answer.content.removesuffix(LAST_EVENT)
        case.validate_response(answer, checks=CHECKS)

    one()
