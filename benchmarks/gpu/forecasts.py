"""Forecasts for an H100, made before anything ran on one: from instruction counts, occupancy and bytes.

Written beside the results. Where a result is off by more than a third, the reason comes before any tuning.
"""

FORECASTS: dict[str, tuple[float, float]] = {
    # Seconds of one layer's operator, by the name of the case.
    "nemotron-nano-9b-v2, 1 decode at 1024, state_update": (6e-6, 7e-6),
    "nemotron-nano-9b-v2, 32 decodes at 1024, state_update": (125e-6, 140e-6),
    "nemotron-nano-9b-v2, 256 decodes at 1024, state_update": (1020e-6, 1090e-6),
    "nemotron-nano-9b-v2, 128 decodes at 1024, state_update": (510e-6, 545e-6),
    "nemotron-nano-9b-v2, 128 decodes at 1024, written once in 8, state_replay": (300e-6, 380e-6),
    "nemotron-nano-9b-v2, 1 decode at 1024, conv1d_update": (4e-6, 5e-6),
    "nemotron-nano-9b-v2, 256 decodes at 1024, conv1d_update": (27e-6, 32e-6),
    "nemotron-nano-9b-v2, 8192 tokens, conv1d_prefill": (190e-6, 220e-6),
    "nemotron-nano-9b-v2, 8192 tokens, ssd_prefill": (850e-6, 1000e-6),
    "nemotron-h-8b, 8192 tokens, ssd_prefill": (440e-6, 520e-6),
    "granite-4.0-h-tiny, 8192 tokens, ssd_prefill": (350e-6, 400e-6),
    "falcon-h1-7b, 8192 tokens, ssd_prefill": (800e-6, 950e-6),
    "nemotron-nano-9b-v2, 2048 tokens, gated_norm": (75e-6, 90e-6),
    "nemotron-nano-9b-v2, 2048 tokens, rms_norm": (50e-6, 60e-6),
    "nemotron-nano-9b-v2, 64 decodes at 1024, paged_attention": (115e-6, 130e-6),
    "nemotron-nano-9b-v2, 64 decodes at 8192, paged_attention": (850e-6, 900e-6),
    "nemotron-nano-9b-v2, 1 decode at 8192, paged_attention": (20e-6, 24e-6),
    "nemotron-nano-9b-v2, 2048 tokens, paged_attention": (140e-6, 180e-6),
    "nemotron-nano-9b-v2, 2048 tokens behind 14336, paged_attention": (2.0e-3, 2.6e-3),
    "qwen3-next-80b-a3b, 8192 tokens, gated_delta_prefill": (1.5e-3, 2.0e-3),
    "sample, 64 rows": (60e-6, 80e-6),
    # Seconds of a whole step on the device, bfloat16, captured where it decodes.
    "decode, 1 rows, states in float32, captured": (7.3e-3, 8.1e-3),
    "decode, 32 rows, states in float32, captured": (10.5e-3, 11.7e-3),
    "decode, 256 rows, states in float32, captured": (39e-3, 43.4e-3),
    "decode, 256 rows, states in float16, captured": (25e-3, 28e-3),
    "prompt, 1 x 2048": (62e-3, 72e-3),
}
OFF = 1 / 3


def beside(case: str, seconds: float) -> dict[str, object]:
    """Return the forecast for a case, as fields of its line; nothing where there is none."""
    if (foreseen := FORECASTS.get(case)) is None:
        return {}
    low, high = foreseen
    off = seconds > high * (1 + OFF) or seconds < low * (1 - OFF)
    return {"forecast_seconds": foreseen, "off_by_more_than_a_third": off}
