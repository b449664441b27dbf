"""The endpoint picker: tells Envoy, or what else speaks its external processing, where a request goes.

The endpoint picker protocol of the Gateway API Inference Extension, over the gateway's own pool and router.
`server` listens, `picker` walks one request through, `messages` and `request_head` are its words, `usage`
and `picker_metrics` what it learns from the answer. Needs the extra "endpoint-picker".
"""
