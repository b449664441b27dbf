"""Connections to engines: one request at a time, the answer as it arrives, and time limits on both.

The gateway has two HTTP clients. Relayed requests use the one in this folder, because each of their
microseconds counts and a relay needs little: it passes headers and bodies on as bytes, wakes no task for each
token, and distinguishes a connection that could not be opened from one that broke. The gateway's own requests
to engines, about one per second and engine, use aiohttp, which parses, follows redirects and decodes: probes
(`endpoints.probe`), tokenizers (`prompts.text_processors`), changes of prefixes (`prefix_index.direct_feed`)
and `/v1/status` (`api.serving_status`), all with the session of `connector.make_session`.
"""
