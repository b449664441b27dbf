"""The API process: HTTP, server-sent events and the OpenAI API. Talks to the engine through `wire` only."""
