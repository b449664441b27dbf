"""Sources of models: turns a URI into a local directory that holds config.json.

The engine process, the API process, the planner and the command line call it before anything is loaded.
Torch-free; it never reads weights, and never takes a plain name for a model on the Hub.
"""

import importlib.resources
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mamba_api.errors import InvalidModelUri
from mamba_api.model_uri import REMOTE, ModelUri, parse_model_uri
from mamba_server.model.checkpoint.errors import (
    DownloadFailed,
    InsufficientDiskSpace,
    InvalidSource,
    SourceError,
    SourceNotFound,
)
from mamba_server.model.remote.errors import (
    AccessDenied,
    DamagedFile,
    FilesChanged,
    FullDisk,
    Interrupted,
    RemoteError,
)
from mamba_server.model.remote.model_copy import model_copy
from mamba_server.model.remote.remote_config import RemoteFacts, remote_facts
from mamba_server.model.remote.remote_file import CONFIG_FILES, MODEL_FILES
from mamba_server.model.remote.store_of import store_of
from mamba_server.model.remote.use_record import record_use
from mamba_settings.byte_size import binary_size

Progress = Callable[[str, int, int], None]
"""Callback `progress(stage, done, total)`: bytes done and bytes in total of one stage."""

MODEL, ADAPTER = CONFIG_FILES
"""Files by which the directory of a model, and the directory of an adapter, are known."""

PVC_ROOT = Path("/models")
"""Directory in which claims are mounted in a pod: pvc://claim/path is PVC_ROOT/claim/path."""

_FORMS = (
    "hf://OWNER/NAME, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, oci://REGISTRY/REPOSITORY:TAG or "
    "https://HOST/PATH/"
)
_log = logging.getLogger(__name__)
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_HUB = re.compile(r"^(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[\w./-]+))?$")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")


def silent(_stage: str, _done: int, _total: int) -> None:
    """Ignore progress."""


def resolve(
    uri: str,
    progress: Progress = silent,
    *,
    pvc_root: Path = PVC_ROOT,
    say: Callable[[str], None] = _log.info,
) -> Path:
    """Return the local directory of the model at `uri`, downloading it if necessary.

    Accepts a plain path, file://PATH, hf://OWNER/NAME[@REVISION], pvc://CLAIM/PATH, builtin://NAME, and the
    forms of `REMOTE`. Downloads go into the Hub's cache (HF_HOME); an interrupted one resumes where it
    stopped.

    Args:
        uri: the model.
        progress: receives the bytes of a download.
        pvc_root: directory in which claims are mounted.
        say: receives messages about a download.

    Raises InvalidSource, SourceNotFound, InsufficientDiskSpace, DownloadFailed.
    """
    return _resolved(uri, MODEL, progress, pvc_root, say)


def resolve_adapter(
    uri: str,
    progress: Progress = silent,
    *,
    pvc_root: Path = PVC_ROOT,
    say: Callable[[str], None] = _log.info,
) -> Path:
    """Return the local directory of the adapter at `uri`; the rest is as with `resolve`."""
    return _resolved(uri, ADAPTER, progress, pvc_root, say)


def _resolved(
    uri: str, config_file: str, progress: Progress, pvc_root: Path, say: Callable[[str], None]
) -> Path:
    """Return the local directory at `uri`, which has to hold `config_file`.

    `progress` and `say` get the progress and the messages of a download. `pvc_root` is the directory with the
    volumes of URIs `pvc://`. Raises as `resolve` does.
    """
    scheme, rest = _split(uri)
    if scheme in REMOTE or scheme == "hf":
        copy = _remote_copy(uri, progress, say) if scheme in REMOTE else _download(uri, rest, progress)
        record_use(copy, uri)
        return _require_file(copy, uri, config_file)
    if scheme == "builtin":
        return _require_file(_builtin(uri, rest), uri, config_file)
    if scheme == "pvc":
        return _require_file(_below(pvc_root, rest, uri), uri, config_file)
    try:
        return _require_file(Path(rest).expanduser(), uri, config_file)
    except RuntimeError as error:
        raise SourceNotFound(f"{uri}: the home directory does not exist") from error


def check(uri: str) -> None:
    """Check in milliseconds that a model that needs no download exists, as `resolve` does.

    Raises InvalidSource, SourceNotFound.
    """
    scheme, _ = _split(uri)
    if scheme in REMOTE:
        _remote_uri(uri)
    elif scheme != "hf":
        resolve(uri)


def check_download(uri: str, config_file: str = MODEL) -> None:
    """Check that a model or adapter is in the cache or at its source; a local one is not checked.

    Asks the source once, while a download would retry for half a minute. Raises InvalidSource,
    SourceNotFound, DownloadFailed.
    """
    scheme, rest = _split(uri)
    if scheme in REMOTE:
        _check_remote(uri)
    if scheme != "hf":
        return
    repo, revision = _on_hub(uri, rest)
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        cached = try_to_load_from_cache(repo, config_file, revision=revision)
        # The planner downloads nothing but the configuration, so weights must be there, too.
        if isinstance(cached, str) and any(Path(cached).parent.glob("*.safetensors")):
            return
        get_hf_file_metadata(hf_hub_url(repo, config_file, revision=revision))
    except Exception as error:  # the Hub's client raises errors of several HTTP libraries
        offline = isinstance(error, OfflineModeIsEnabled)
        if offline or not isinstance(error, HfHubHTTPError | ValueError):
            raise _failure(LocalEntryNotFoundError(str(error)), uri, repo, revision) from error
        raise _failure(error, uri, repo, revision) from error


def display_name(uri: str) -> str:
    """Return the last part of the URI, without a revision: the default of the model's name in the API."""
    scheme, rest = _split(uri)
    if scheme in REMOTE:
        return _remote_uri(uri).short_name
    name = rest.rstrip("/").rsplit("/", 1)[-1]
    if name in (".", ".."):
        return Path(rest).resolve().name
    return name.split("@", 1)[0] if scheme == "hf" else name


def _split(uri: str) -> tuple[str, str]:
    """Return the scheme, "" for a plain path, and the rest of the URI. Raises InvalidSource."""
    if not uri.strip():
        raise InvalidSource("the model's name is empty: write a directory, or hf://OWNER/NAME")
    match = _SCHEME.match(uri)
    if match is None:
        return "", uri
    scheme = match.group(1).lower()
    if scheme == "file":
        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost"):
            raise InvalidSource(
                f"{uri}: a file URI has three slashes: write file:///{parts.netloc}{parts.path}"
            )
        return scheme, unquote(parts.path)
    if scheme not in ("hf", "pvc", "builtin", *REMOTE):
        raise InvalidSource(
            f"{uri}: unknown scheme {scheme!r}; write file, hf, pvc, builtin, s3, gs, oci, https or http"
        )
    return scheme, uri[match.end() :]


def _require_file(path: Path, uri: str, config_file: str) -> Path:
    try:
        return _with_config(path, uri, config_file)
    except OSError as error:
        raise SourceNotFound(f"{uri}: cannot be read: {error.strerror}: {path}") from error


def _with_config(path: Path, uri: str, config_file: str) -> Path:
    if path.is_file():
        raise SourceNotFound(f"{uri}: {path} is a file; write the directory that holds {config_file}")
    if not path.is_dir():
        hint = ""
        if not _SCHEME.match(uri):
            noun, other = ("a model", " or builtin://NAME") if config_file == MODEL else ("an adapter", "")
            hint = f"; {noun} is a directory, hf://OWNER/NAME{other}"
            if _HUB.match(uri) and not uri.startswith("."):
                hint = f"; for the {noun.split()[1]} of that name on the Hub, write hf://{uri}"
        raise SourceNotFound(f"{uri}: the directory {path} does not exist{hint}")
    if not (path / config_file).is_file():
        raise SourceNotFound(f"{uri}: there is no {config_file} in {path}")
    return path


def _below(root: Path, rest: str, uri: str) -> Path:
    claim, _, inside = unquote(rest).partition("/")
    if not _NAME.match(claim):
        raise InvalidSource(f"{uri}: write pvc://CLAIM/PATH")
    path = root / claim / inside
    if not Path(os.path.normpath(path)).is_relative_to(root / claim):
        raise InvalidSource(f"{uri}: the path leads out of the claim; write a path without '..'")
    return path


def _builtin(uri: str, name: str) -> Path:
    folder = importlib.resources.files("mamba_server") / "builtin"
    if not _NAME.match(name):
        raise InvalidSource(f"{uri}: write builtin://NAME")
    path = Path(str(folder / name))
    if not path.is_dir():
        parent = Path(str(folder))
        names = sorted(p.name for p in parent.iterdir() if p.is_dir()) if parent.is_dir() else []
        raise SourceNotFound(
            f"{uri}: no built-in model has that name; built-in models are: {', '.join(names) or 'none'}"
        )
    return path


def facts_of_remote(uri: str) -> RemoteFacts:
    """Return configuration and size of a model of `REMOTE`, without its weights. Raises SourceError."""
    try:
        return remote_facts(_remote_uri(uri), uri)
    except RemoteError as error:
        raise _remote_failure(error) from error


def hub_cache() -> tuple[Path, bool]:
    """Return the directory of the model cache, and whether models come from it alone."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE), bool(constants.HF_HUB_OFFLINE)


def _remote_uri(uri: str) -> ModelUri:
    try:
        return parse_model_uri(uri)
    except InvalidModelUri as error:
        raise InvalidSource(f"{uri}: this is no model URI; write {_FORMS}") from error


def _remote_copy(uri: str, progress: Progress, say: Callable[[str], None]) -> Path:
    cache, offline = hub_cache()
    try:
        return model_copy(
            _remote_uri(uri), uri, cache, lambda done, total: progress("download", done, total), say,
            offline=offline,
        )  # fmt: skip
    except RemoteError as error:
        raise _remote_failure(error) from error


def _check_remote(uri: str) -> None:
    parsed = _remote_uri(uri)
    cache, offline = hub_cache()
    folder = cache / parsed.folder
    if offline or any(folder.glob("snapshots/*")):
        return
    try:
        store_of(parsed, uri).files()
    except RemoteError as error:
        raise _remote_failure(error) from error


def _remote_failure(error: RemoteError) -> SourceError:
    """Translate an error of a store.

    An error that a later attempt may mend is a failure of the download; any other is a wrong input.
    """
    match error:
        case FullDisk():
            return InsufficientDiskSpace(str(error), error.commit)
        case AccessDenied() | Interrupted() | DamagedFile() | FilesChanged():
            return DownloadFailed(str(error))
    return SourceNotFound(str(error))


def _on_hub(uri: str, rest: str) -> tuple[str, str | None]:
    """Return repository and revision of an hf:// URI; None = no revision. Raises InvalidSource."""
    match = _HUB.match(rest.rstrip("/"))
    if match is None:
        raise InvalidSource(f"{uri}: write hf://OWNER/NAME or hf://OWNER/NAME@REVISION")
    return match["repo"], match["revision"]


def _download(uri: str, rest: str, progress: Progress) -> Path:
    repo, revision = _on_hub(uri, rest)
    from huggingface_hub import snapshot_download

    options: dict[str, Any] = {
        "revision": revision,
        "allow_patterns": list(MODEL_FILES),
        "library_name": "mambaserve",
    }
    try:
        total, commit = _missing_bytes(repo, options)
        if total:
            _require_space(total, uri, commit)
            progress("download", 0, total)
        # The client's own bars would be drawn beside those of the command.
        options["tqdm_class"] = _reporting_bar(progress, total)
        path = Path(snapshot_download(repo, **options))
    except InsufficientDiskSpace:
        raise
    except Exception as error:  # the Hub's client raises errors of several HTTP libraries
        raise _failure(error, uri, repo, revision) from error
    if total:
        progress("download", total, total)
    return path


def _failure(error: Exception, uri: str, repo: str, revision: str | None) -> SourceError:
    """Translate an error of the Hub's client."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    match error:
        case HFValidationError():
            return InvalidSource(f"{uri}: {error}")
        case GatedRepoError():
            return DownloadFailed(
                f"{uri}: access to the model is restricted; accept the terms on its page and set HF_TOKEN"
            )
        case RevisionNotFoundError():
            return SourceNotFound(f"{uri}: the Hub has no revision {revision!r} of {repo}")
        case RepositoryNotFoundError():
            return SourceNotFound(
                f"{uri}: the Hub has no model {repo}; check its name, or set HF_TOKEN if it is private"
            )
        case LocalEntryNotFoundError():
            return DownloadFailed(
                f"{uri}: the Hub cannot be reached and {repo} is not in the local cache; check the network "
                "and HF_ENDPOINT, or write a local directory"
            )
        case EntryNotFoundError():
            return SourceNotFound(f"{uri}: the Hub has no config.json for this model")
    cause = f"{type(error).__name__}: {error}"
    return DownloadFailed(f"{uri}: the download failed: {cause}; start again to resume it where it stopped")


def _require_space(total: int, uri: str, commit: str) -> None:
    """Raise InsufficientDiskSpace unless the disk of the model cache has room for `total` bytes.

    It is checked before the first byte: half a model is useless, and fills others' disks.
    """
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    folder = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(folder).free
    if total > free:
        raise InsufficientDiskSpace(
            f"{uri}: the download needs {binary_size(total)}, and {cache} has {binary_size(free)} free: free "
            "disk space, or set HF_HOME to a directory on a larger volume (in a cluster, enlarge that of "
            "spec.model.cache)",
            commit,
        )


def _missing_bytes(repo: str, options: dict[str, Any]) -> tuple[int, str]:
    """Return the number of bytes that are not in the cache yet, and the commit that they belong to.

    The number is 0 if the cache has all files, or if the Hub cannot be reached; then the cache decides.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError

    try:
        files = snapshot_download(repo, dry_run=True, tqdm_class=_reporting_bar(silent, 0), **options)
    except DryRunError:
        return 0, ""
    commit = next((file.commit_hash for file in files), "")
    return sum(file.file_size or 0 for file in files if file.will_download), commit


def _reporting_bar(progress: Progress, total: int) -> type:
    """Return a class of tqdm that draws nothing and reports the Hub client's byte bars to `progress`."""
    from tqdm.std import tqdm

    class ReportingBar(tqdm):  # type: ignore[misc]
        reported = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            kwargs["disable"] = False
            super().__init__(*args, **kwargs)

        def display(self, *_args: Any, **_kwargs: Any) -> bool:
            return True

        def update(self, n: float | None = 1) -> Any:
            moved = super().update(n)
            if self.unit == "B" and total:
                # Several bars count the same bytes (network, disk); the furthest one is reported.
                done = min(int(self.n), total)
                if done > ReportingBar.reported:
                    ReportingBar.reported = done
                    progress("download", done, total)
            return moved

        def close(self) -> None:
            self.disable = True

    return ReportingBar
