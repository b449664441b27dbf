"""The endpoint picker: tells Envoy, or another proxy with external processing, which engine gets a request.

It speaks the endpoint picker protocol of the Gateway API Inference Extension, and uses the pool and the
router of the gateway. `server` accepts connections, `picker` handles one request, `messages` and
`request_head` translate the protocol, and `picker_metrics` counts answers. Requires the extra
"endpoint-picker".
"""
