"""Where a model comes from: turns a URI into a local directory that holds config.json.

Called by the engine process, the API process, the planner and the command line before anything is loaded.
Torch-free; never reads weights, never guesses that a plain name means the Hub.
"""

import importlib.resources
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mamba_server.model.checkpoint.errors import (
    DownloadFailed,
    InsufficientDiskSpace,
    InvalidSource,
    SourceError,
    SourceNotFound,
)
from mamba_settings.byte_size import binary_size

Progress = Callable[[str, int, int], None]
"""`progress(stage, done, total)`: bytes done of bytes in all, of one stage."""

PVC_ROOT = Path("/models")
"""Where claims are mounted in a pod: pvc://claim/path is PVC_ROOT/claim/path."""

HUB_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.safetensors")
"""What a model needs; pickled weights are never fetched."""

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_HUB = re.compile(r"^(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[\w./-]+))?$")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")


def silent(_stage: str, _done: int, _total: int) -> None:
    """The progress callback of those who do not look."""


def resolve(uri: str, progress: Progress = silent, *, pvc_root: Path = PVC_ROOT) -> Path:
    """Local directory of the model at `uri`.

    Takes a plain path, file://PATH, hf://OWNER/NAME[@REVISION], pvc://CLAIM/PATH and builtin://NAME. A Hub
    model is downloaded into the Hub's cache (HF_HOME); an interrupted download goes on where it stopped.

    Raises InvalidSource, SourceNotFound, InsufficientDiskSpace, DownloadFailed.
    """
    scheme, rest = _split(uri)
    if scheme == "hf":
        return _checked(_download(uri, rest, progress), uri)
    if scheme == "builtin":
        return _checked(_builtin(uri, rest), uri)
    if scheme == "pvc":
        return _checked(_below(pvc_root, rest, uri), uri)
    try:
        return _checked(Path(rest).expanduser(), uri)
    except RuntimeError as error:
        raise SourceNotFound(f"{uri}: there is no such home directory") from error


def check(uri: str) -> None:
    """Look for a model that needs no download, as `resolve` does, in milliseconds.

    Raises InvalidSource, SourceNotFound.
    """
    if _split(uri)[0] != "hf":
        resolve(uri)


def check_download(uri: str) -> None:
    """Ask once whether a Hub model can be had: it is in the local cache, or the Hub answers for it.

    A download would try for half a minute where nobody answers. Raises InvalidSource, SourceNotFound,
    DownloadFailed; says nothing of models from elsewhere.
    """
    scheme, rest = _split(uri)
    if scheme != "hf":
        return
    repo, revision = _on_hub(uri, rest)
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        cached = try_to_load_from_cache(repo, "config.json", revision=revision)
        # Planning leaves the configuration alone there.
        if isinstance(cached, str) and any(Path(cached).parent.glob("*.safetensors")):
            return
        get_hf_file_metadata(hf_hub_url(repo, "config.json", revision=revision))
    except Exception as error:  # the Hub's client lets errors of several HTTP libraries through
        offline = isinstance(error, OfflineModeIsEnabled)
        if offline or not isinstance(error, HfHubHTTPError | ValueError):
            raise _failure(LocalEntryNotFoundError(str(error)), uri, repo, revision) from error
        raise _failure(error, uri, repo, revision) from error


def display_name(uri: str) -> str:
    """Last part of the URI, without a revision: the model's name in the API unless told otherwise."""
    scheme, rest = _split(uri)
    name = rest.rstrip("/").rsplit("/", 1)[-1]
    if name in (".", ".."):
        return Path(rest).resolve().name
    return name.split("@", 1)[0] if scheme == "hf" else name


def _split(uri: str) -> tuple[str, str]:
    """Scheme ("" for a plain path) and what follows it."""
    if not uri.strip():
        raise InvalidSource("the model is empty: give a directory, or hf://owner/name")
    match = _SCHEME.match(uri)
    if match is None:
        return "", uri
    scheme = match.group(1).lower()
    if scheme == "file":
        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost"):
            raise InvalidSource(f"{uri}: a file URI has three slashes: file:///{parts.netloc}{parts.path}")
        return scheme, unquote(parts.path)
    if scheme not in ("hf", "pvc", "builtin"):
        raise InvalidSource(f"{uri}: unknown scheme {scheme!r}; known are file, hf, pvc and builtin")
    return scheme, uri[match.end() :]


def _checked(path: Path, uri: str) -> Path:
    try:
        return _with_config(path, uri)
    except OSError as error:
        raise SourceNotFound(f"{uri}: cannot be read: {error.strerror}: {path}") from error


def _with_config(path: Path, uri: str) -> Path:
    if path.is_file():
        raise SourceNotFound(f"{uri}: {path} is a file; give the directory that holds config.json")
    if not path.is_dir():
        hint = ""
        if not _SCHEME.match(uri):
            hint = "; a model is a directory, hf://OWNER/NAME or builtin://NAME"
            if _HUB.match(uri):
                hint = f"; for the model of that name on the Hub write hf://{uri}"
        raise SourceNotFound(f"{uri}: no directory {path}{hint}")
    if not (path / "config.json").is_file():
        raise SourceNotFound(f"{uri}: there is no config.json in {'it' if str(path) == uri else path}")
    return path


def _below(root: Path, rest: str, uri: str) -> Path:
    claim, _, inside = unquote(rest).partition("/")
    if not _NAME.match(claim):
        raise InvalidSource(f"{uri}: write pvc://CLAIM/PATH")
    path = root / claim / inside
    if not Path(os.path.normpath(path)).is_relative_to(root / claim):
        raise InvalidSource(f"{uri}: the path leads out of the claim")
    return path


def _builtin(uri: str, name: str) -> Path:
    folder = importlib.resources.files("mamba_server") / "builtin"
    if not _NAME.match(name):
        raise InvalidSource(f"{uri}: write builtin://NAME")
    path = Path(str(folder / name))
    if not path.is_dir():
        parent = Path(str(folder))
        have = sorted(p.name for p in parent.iterdir() if p.is_dir()) if parent.is_dir() else []
        raise SourceNotFound(f"{uri}: no such model is shipped; there are: {', '.join(have) or 'none'}")
    return path


def _on_hub(uri: str, rest: str) -> tuple[str, str | None]:
    """Return repository and revision."""
    match = _HUB.match(rest.rstrip("/"))
    if match is None:
        raise InvalidSource(f"{uri}: write hf://OWNER/NAME or hf://OWNER/NAME@REVISION")
    return match["repo"], match["revision"]


def _download(uri: str, rest: str, progress: Progress) -> Path:
    repo, revision = _on_hub(uri, rest)
    from huggingface_hub import snapshot_download

    wanted: dict[str, Any] = {
        "revision": revision,
        "allow_patterns": list(HUB_FILES),
        "library_name": "mambaserve",
    }
    try:
        total, commit = _to_fetch(repo, wanted)
        if total:
            _room_for(total, uri, commit)
            progress("download", 0, total)
            wanted["tqdm_class"] = _reporting_bar(progress, total)
        path = Path(snapshot_download(repo, **wanted))
    except InsufficientDiskSpace:
        raise
    except Exception as error:  # the Hub's client lets errors of several HTTP libraries through
        raise _failure(error, uri, repo, revision) from error
    if total:
        progress("download", total, total)
    return path


def _failure(error: Exception, uri: str, repo: str, revision: str | None) -> SourceError:
    """Return what to say of an error of the Hub's client."""
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
                f"{uri}: access is restricted; accept its terms on its page and set HF_TOKEN"
            )
        case RevisionNotFoundError():
            return SourceNotFound(f"{uri}: the Hub has no revision {revision!r} of {repo}")
        case RepositoryNotFoundError():
            return SourceNotFound(f"{uri}: the Hub has no model {repo} (or it is private: set HF_TOKEN)")
        case LocalEntryNotFoundError():
            return DownloadFailed(
                f"{uri}: the Hub cannot be reached and {repo} is not in the local cache; check the network "
                "or HF_ENDPOINT, or give a local directory"
            )
        case EntryNotFoundError():
            return SourceNotFound(f"{uri}: the Hub has no config.json there")
    said = f"{type(error).__name__}: {error}"
    return DownloadFailed(f"{uri}: download failed: {said}; start again to go on where it stopped")


def _room_for(total: int, uri: str, commit: str) -> None:
    """Before the first byte: half a model is of no use, and may have filled somebody else's disk."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    free = shutil.disk_usage(next(one for one in (cache, *cache.parents) if one.exists())).free
    if total > free:
        raise InsufficientDiskSpace(
            f"{uri}: {binary_size(total)} are to be fetched and {cache} has {binary_size(free)} left: free "
            "some of it, or point HF_HOME to a larger volume (in a cluster that of spec.model.cache)",
            commit,
        )


def _to_fetch(repo: str, wanted: dict[str, Any]) -> tuple[int, str]:
    """Return the bytes that are not yet in the cache, and of which commit they are.

    No bytes when all is there or the Hub cannot be asked (the cache then decides).
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError

    try:
        files = snapshot_download(repo, dry_run=True, tqdm_class=_reporting_bar(silent, 0), **wanted)
    except DryRunError:
        return 0, ""
    commit = next((file.commit_hash for file in files), "")
    return sum(file.file_size or 0 for file in files if file.will_download), commit


def _reporting_bar(progress: Progress, total: int) -> type:
    """A tqdm that draws nothing and hands the bytes of the Hub client's byte bars to `progress`."""
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
                # Several bars count the same bytes (network, disk): the furthest one is shown.
                done = min(int(self.n), total)
                if done > ReportingBar.reported:
                    ReportingBar.reported = done
                    progress("download", done, total)
            return moved

        def close(self) -> None:
            self.disable = True

    return ReportingBar
