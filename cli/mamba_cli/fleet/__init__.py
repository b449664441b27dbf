"""A fleet of engines behind a gateway, simulated over a trace, for `mambaserve plan --trace`.

`workload` has the requests, `engine_profile` the speed and memory of an engine. `engine` simulates an engine
with the product's state cache, `pod` the life of its pod, and `gateway` a gateway with the product's router.
`simulation` handles the events in order of time; no clock is read.
"""
