"""The way to an engine: its connections, one request, the response as it comes, limits of time on both.

The gateway has two HTTP clients. Relayed requests go through the one in this folder, because every
microsecond of theirs counts and a relay needs little: it passes heads and bodies on as bytes, wakes no task
for a token, and tells a connection that never opened from one that broke. What the gateway asks of engines
for itself, about once a second and engine, goes through aiohttp, which parses, redirects and decodes: probes
(`endpoints.probe`), tokenizers (`prompts.text_processors`), prefix changes (`prefix_index.direct_feed`) and
`/v1/status` (`api.serving_status`), all with the session that `connector.make_session` makes.
"""
