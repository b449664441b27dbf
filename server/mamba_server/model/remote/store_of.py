"""`store_of`: the store that a URI names. Called by `model_copy` and `remote_config`."""

from mamba_api.model_uri import ModelUri
from mamba_server.model.remote.errors import MissingExtra
from mamba_server.model.remote.remote_file import RemoteStore


def store_of(uri: ModelUri, text: str) -> RemoteStore:
    """Return the store of a URI whose scheme is in `REMOTE`.

    Args:
        uri: the parsed URI.
        text: the URI as it was written, for messages.

    Raises RemoteError.
    """
    if uri.scheme in ("s3", "gs"):
        from mamba_server.model.remote.bucket_store import BucketStore

        return BucketStore(uri, text)
    try:
        # A client of the command line alone has no package for HTTP that threads can share.
        import urllib3  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"{text}: reading {uri.scheme}:// needs urllib3: pip install 'mambaserve[server]'"
        ) from error
    if uri.scheme == "oci":
        from mamba_server.model.remote.registry_store import RegistryStore

        return RegistryStore(uri, text)
    from mamba_server.model.remote.web_store import WebStore

    return WebStore(uri, text)
