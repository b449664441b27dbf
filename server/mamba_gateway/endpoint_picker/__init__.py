"""The endpoint picker: tells Envoy, or another proxy with external processing, where a request goes.

The endpoint picker protocol of the Gateway API Inference Extension, over the gateway's own pool and router.
`server` listens, `picker` handles one request, `messages` and `request_head` translate the protocol, and
`picker_metrics` counts answers. Needs the extra "endpoint-picker".
"""
