"""The public application as a whole: what its document says, and what happens before a body is read."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from asgi import Asked, ask
from mamba_edge.api_keys import KeyFile
from scripted_engine import Api

GENERATION = ("/v1/completions", "/v1/chat/completions")


@pytest.fixture
async def document() -> dict[str, Any]:
    found: dict[str, Any] = (await ask(Api().app, "GET", "/openapi.json").done()).json
    return found


@pytest.fixture
def keyed(tmp_path: Path) -> Api:
    (tmp_path / "keys").write_text("key-1\n")
    return Api(keys=KeyFile(tmp_path / "keys", "api_key_file"))


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return found


async def test_every_error_answer_is_described_as_the_envelope(document: dict[str, Any]) -> None:
    codes = set()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            for code, answer in operation["responses"].items():
                if int(code) >= 400 and path not in ("/readyz", "/health"):
                    codes.add(code)
                    schema = answer["content"]["application/json"]["schema"]
                    name = "MessagesErrorEnvelope" if path.startswith("/v1/messages") else "ErrorEnvelope"
                    assert schema == {"$ref": f"#/components/schemas/{name}"}
                    assert answer["description"]
    assert codes == {"400", "401", "403", "404", "408", "413", "415", "429", "500", "503", "504"}
    assert {"HTTPValidationError", "ValidationError"}.isdisjoint(document["components"]["schemas"])


@pytest.mark.parametrize(
    ("path", "request_model", "event"),
    [
        ("/v1/completions", "CompletionRequest", "CompletionResponse"),
        ("/v1/chat/completions", "ChatCompletionRequest", "ChatCompletionChunk"),
    ],
)
async def test_bodies_whole_answers_and_events_are_described(
    document: dict[str, Any], path: str, request_model: str, event: str
) -> None:
    operation = document["paths"][path]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": f"#/components/schemas/{request_model}"}
    fields = resolved(document, body)["properties"]
    assert {"top_k", "min_p", "ignore_eos", "return_token_ids", "cache_salt", "priority"} <= set(fields)
    answers = operation["responses"]["200"]["content"]
    assert resolved(document, answers["application/json"]["schema"])["properties"]["choices"]
    data = answers["text/event-stream"]["itemSchema"]["properties"]["data"]
    assert {"$ref": f"#/components/schemas/{event}"} in data["contentSchema"]["anyOf"]
    assert event in document["components"]["schemas"]


async def test_the_key_is_asked_for_where_it_is_needed(document: dict[str, Any], keyed: Api) -> None:
    with_keys = (await ask(keyed.app, "GET", "/openapi.json").done()).json
    assert with_keys["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    # A page that shows the document asks nobody for a key that nobody has.
    assert "securitySchemes" not in document["components"]
    for found, needed in ((document, None), (with_keys, [{"bearer": []}])):
        for path, operations in found["paths"].items():
            for operation in operations.values():
                guarded = path.startswith(("/v1/", "/v2/")) or path in ("/tokenize", "/detokenize")
                assert operation.get("security") == (needed if guarded else None)


async def test_operations_stand_in_groups(document: dict[str, Any]) -> None:
    groups = [group["name"] for group in document["tags"]]
    used = [
        tag for operations in document["paths"].values() for one in operations.values() for tag in one["tags"]
    ]
    assert set(used) == set(groups)
    assert len(groups) >= 4
    assert {document["paths"][path]["post"]["tags"][0] for path in GENERATION} == {groups[0]}


@pytest.mark.parametrize("path", GENERATION)
async def test_a_stranger_s_body_is_not_read(path: str, keyed: Api) -> None:
    asked = await Asked(keyed.app, "POST", path).done()
    assert (asked.status, asked.error["code"]) == (401, "invalid_api_key")
    assert keyed.serving.drain.under_way == 0


async def test_a_stranger_is_not_told_what_is_below_v1(keyed: Api) -> None:
    for method, path in (("GET", "/v1/nothing"), ("GET", "/v1/completions"), ("DELETE", "/v1/models")):
        assert (await ask(keyed.app, method, path).done()).status == 401
    for method, path, status in (("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)):
        asked = await ask(keyed.app, method, path, headers=[("Authorization", "Bearer key-1")]).done()
        assert asked.status == status
        assert f"{method} {path}" in asked.error["message"]
    assert (await ask(keyed.app, "GET", "/nothing").done()).status == 404


async def test_head_is_answered_wherever_get_is() -> None:
    api = Api()
    paths = ("/livez", "/readyz", "/health", "/metrics", "/version", "/openapi.json", "/docs", "/v1/models")
    for path in (*paths, "/v1/models/tiny"):
        assert (await ask(api.app, "HEAD", path).done()).status == 200
        refused = await ask(api.app, "POST", path).done()
        assert (refused.status, set(refused.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


async def test_a_wrong_method_is_not_under_way(keyed: Api) -> None:
    keyed.serving.drain.draining = True
    asked = await ask(keyed.app, "GET", "/v1/completions", headers=[("Authorization", "Bearer key-1")]).done()
    assert asked.status == 405


async def test_a_defect_is_told_to_the_log_and_nothing_of_it_to_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Api()

    def broken(*_: Any) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(type(api.serving), "check_model", broken)
    with capture_logs() as lines:
        asked = await ask(api.app, "POST", "/v1/completions", {"prompt": "x"}).done()
    assert (asked.status, asked.error["code"], asked.complete) == (500, "internal_error", True)
    assert b"secret" not in asked.body
    assert asked.headers["x-request-id"]
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["unexpected_error"]
    assert api.answered() == {("/v1/completions", "500"): 1}
    assert api.serving.drain.under_way == 0


async def test_unknown_fields_are_named_in_the_log_before_the_wrong_ones_are_told() -> None:
    with capture_logs() as lines:
        asked = await ask(Api().app, "POST", "/v1/completions", {"prompt": 5, "invented": {}}).done()
    assert asked.status == 400
    [line] = [line for line in lines if line["event"] == "unknown_fields_ignored"]
    assert (line["fields"], line["count"]) == (["invented"], 1)
