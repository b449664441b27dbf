"""Process 1: HTTP, server-sent events and the OpenAI surface. Talks to the engine through `wire` alone."""
