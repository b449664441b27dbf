"""The way to an engine: its connections, one request, the response as it comes, limits of time on both."""
