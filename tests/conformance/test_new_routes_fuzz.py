"""Made-up requests to the routes of agents, at a live server and through a live gateway: no server error.

200 cases run with `make clients`, 10,000 with `make gates`.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from engine_api import ApiProcess, serving
from gate_cases import LARGE
from servers import Command
from tiny_model import write_model

pytestmark = pytest.mark.tools
CASES = 10_000 if LARGE else 200
ROUTES = (
    ("/v1/messages", "POST"), ("/v1/messages/count_tokens", "POST"), ("/v1/responses", "POST"),
    ("/v1/responses/{id}", "GET"), ("/v1/responses/{id}", "DELETE"),
    ("/v1/responses/{id}/input_items", "GET"), ("/v1/conversations", "POST"),
    ("/v1/conversations/{id}", "GET"), ("/v1/conversations/{id}", "POST"),
    ("/v1/conversations/{id}", "DELETE"), ("/v1/conversations/{id}/items", "GET"),
    ("/v1/conversations/{id}/items", "POST"), ("/v1/embeddings", "POST"), ("/v1/rerank", "POST"),
    ("/v2/rerank", "POST"), ("/v1/score", "POST"), ("/tokenize", "POST"), ("/detokenize", "POST"),
)  # fmt: skip
AT_SERVER = tuple(("server", *route) for route in ROUTES)
AT_GATEWAY = (*(("gateway", *route) for route in ROUTES), ("gateway", "/v1/usage", "GET"))


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with serving(write_model(tmp_path_factory.mktemp("model") / "tiny")) as running:
        yield running


@pytest.fixture(scope="module")
def urls(api: ApiProcess) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        gateway = stack.enter_context(Command("gateway", "--backend", api.url, "--port", "0"))
        yield {"server": api.url, "gateway": gateway.wait_for(r"gateway ready at (http://\S+)")[1]}


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("door", "path", "method"), AT_SERVER + AT_GATEWAY)
def test_no_request_is_a_server_error(
    api: ApiProcess, urls: dict[str, str], door: str, path: str, method: str
) -> None:
    from openapi_examples import stay_within_the_document

    # Schemas without a body have few different requests, and those with one take the others' cases.
    share = CASES // 30
    stay_within_the_document(urls[door], path, method, share if method == "POST" else share // 2)
    assert api.call("GET", "/readyz").status == 200
