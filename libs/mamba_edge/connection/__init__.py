"""Sockets and the HTTP/1.1 protocol of a server: connections, their limits and their ends."""
