"""Addresses of a Redis: one server, with TLS, by a socket, behind Sentinel, or a Cluster.

The address contains the password, so it comes from the environment or a file, never from a command line, and
is never shown.
"""

from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from mamba_prefix.errors import BadRedisUrl

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
SENTINEL_PORT, REDIS_PORT = 26379, 6379


def check_url(url: str) -> str:
    """Return the address if it is valid. Raises BadRedisUrl."""
    try:
        parts = urlsplit(url)
        hosts = hosts_of(parts.netloc, SENTINEL_PORT)
    except ValueError as error:
        raise BadRedisUrl(f"is not an address: {error}") from None
    if parts.scheme not in SCHEMES:
        raise BadRedisUrl(f"must begin with one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
    if any(character.isspace() for character in url):
        raise BadRedisUrl("contains a blank")
    if parts.scheme == "unix":
        if not parts.path:
            raise BadRedisUrl("names no socket: unix:///path/to/redis.sock")
        return url
    if not all(host for host, _ in hosts):
        raise BadRedisUrl(f"names no host: {parts.scheme}://HOST:PORT")
    _check_path(parts)
    return url


def _check_path(parts: SplitResult) -> None:
    path = [part for part in parts.path.split("/") if part]
    if parts.scheme.endswith("+sentinel"):
        if not path:
            raise BadRedisUrl(f"names no master: {parts.scheme}://HOST:PORT,HOST:PORT/MASTER/0")
        path = path[1:]
    if len(path) > 1 or not all(part.isdecimal() for part in path):
        raise BadRedisUrl("has a database that is not a number")
    if parts.scheme.endswith("+cluster") and path not in ([], ["0"]):
        raise BadRedisUrl("has a database; a cluster only has number 0")


def url_from(url: str | None, file: str | None) -> str | None:
    """Return the address from `url` or from the file `file`; None if neither is set.

    Raises BadRedisUrl, whose message names the option.
    """
    option, address = "--redis-url", url
    try:
        if file is not None:
            option = "--redis-url-file"
            address = read_url(file)
        return None if address is None else check_url(address)
    except BadRedisUrl as error:
        raise BadRedisUrl(f"{option}: {error}") from None


def read_url(path: str) -> str:
    """Return the address in a file, its only line. Raises BadRedisUrl."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRedisUrl(f"{path} cannot be read: {error}") from None
    if len(lines) != 1:
        raise BadRedisUrl(f"{path} must hold one address and nothing else")
    return lines[0]


def hosts_of(netloc: str, port: int) -> list[tuple[str, int]]:
    """Return the hosts and ports in a list with commas; `port` is the default. Raises ValueError."""
    out = []
    for host in netloc.rpartition("@")[2].split(","):
        parts = urlsplit(f"//{host}")
        out.append((parts.hostname or "", parts.port or port))
    return out
