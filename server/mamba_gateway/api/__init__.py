"""The gateway's own routes beside the relay, and the ASGI application of all of them."""
