"""Traces of requests that a proxy relays: the spans of the gateway's relay, between client and engine."""

from eventually import until
from kept_spans import SAMPLED, UNSAMPLED, KeptSpans, parents, tracing_to
from picker_harness import ENGINES, JSON, PickerHarness, Stream, addresses, put


async def through(picker: PickerHarness, *headers: tuple[str, str], status: int = 200) -> dict[str, str]:
    """Send one request and return the headers that the proxy shall pass on."""
    stream: Stream = picker.stream()
    await stream.headers(*headers)
    await stream.body(JSON)
    found = await stream.read()
    assert addresses(found)
    await stream.read()
    await stream.answer_headers(status=status)
    await stream.answer_body(b"{}")
    await stream.ends()
    await until(picker.is_empty)
    return put(found.request_headers)


async def test_a_pick_is_a_part_of_the_client_s_trace_and_the_engine_s_spans_are_below_it() -> None:
    kept = KeptSpans()
    picker = PickerHarness(tracing=tracing_to(kept, ratio=0.0))
    picker.engines(*ENGINES)
    async with picker.running():
        told = await through(picker, ("traceparent", SAMPLED), ("x-request-id", "r-1"))
        await until(lambda: kept.requests)
    root = "POST /v1/completions"
    above = parents(kept.spans)
    assert above.pop(root) == ""
    assert {name: parent for name, parent in above.items() if name != "gateway.read_prompt"} == {
        "gateway.queue": root, "gateway.route": root, "gateway.attempt": root,
    }  # fmt: skip
    [first], [attempt], [route] = (kept.named(name) for name in (root, "gateway.attempt", "gateway.route"))
    assert f"{first.parent.span_id:016x}" == SAMPLED.split("-")[2]
    assert told["traceparent"] == f"00-{'a' * 32}-{attempt.context.span_id:016x}-01"
    said = dict(first.attributes or {})
    assert (said["http.response.status_code"], said["mambaserve.request_id"]) == (200, "r-1")
    assert said["gen_ai.request.model"] == "m"
    assert (route.attributes or {})["mambaserve.endpoint"] == f"pod-{ENGINES[0]}"
    exemplars = {
        sample.name: sample.exemplar.labels["trace_id"]
        for family in picker.metrics.registry.collect()
        for sample in family.samples
        if sample.exemplar
    }
    assert exemplars == dict.fromkeys(
        (f"inference_objective_request_{name}_seconds_bucket" for name in ("ttft", "duration")), "a" * 32
    )


async def test_what_an_engine_failed_is_kept_though_nobody_sampled_it_and_what_went_well_is_not() -> None:
    kept = KeptSpans()
    picker = PickerHarness(tracing=tracing_to(kept))
    picker.engines(*ENGINES)
    async with picker.running():
        await through(picker, ("traceparent", UNSAMPLED))
        assert not kept.requests
        await through(picker, ("traceparent", UNSAMPLED), status=500)
        await until(lambda: kept.requests)
    [attempt] = kept.named("gateway.attempt")
    assert (attempt.attributes or {})["error.type"] == "500"


async def test_without_tracing_the_client_s_trace_goes_on_as_it_is() -> None:
    picker = PickerHarness()
    picker.engines(*ENGINES)
    async with picker.running():
        assert "traceparent" not in await through(picker, ("traceparent", SAMPLED))
