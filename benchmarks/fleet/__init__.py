"""A fleet of engines behind gateways, simulated over a trace: what routers and autoscalers make of it.

`workload` says what is asked, `engine_profile` how fast an engine is, `engine` simulates one, `pod` its life,
`simulation` runs the events, `routers` and `scalers` are compared, `score` counts. No clock but the trace's.
"""
