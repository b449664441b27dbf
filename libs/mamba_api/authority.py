"""A host and a port as URLs have them."""


def authority(host: str, port: int) -> str:
    """`host:port`, an address of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
