"""A fleet of engines behind a gateway, simulated over a trace: what `mambaserve plan --trace` asks.

`workload` says what is asked, `engine_profile` how fast an engine is, `engine` simulates one on the product's
state cache, `pod` its life, `gateway` is the product's router, `simulation` runs the events. No clock but the
trace's.
"""
