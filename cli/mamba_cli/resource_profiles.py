"""The resource profiles that a command knows: those that ship, and a cluster's own out of a file."""

from pathlib import Path

from mamba_api.errors import InvalidDocument
from mamba_api.v1alpha1.profile_documents import read_profiles
from mamba_api.v1alpha1.profiles import Profiles, ResourceProfile
from mamba_cli.errors import InvalidInput
from mamba_planner.shipped_profiles import SHIPPED


def known_profiles(path: Path | None) -> Profiles:
    """Shipped ones, and those of the file at `path`, which come before shipped ones of the same name.

    Raises `InvalidInput` with all that is wrong with the file.
    """
    if path is None:
        return SHIPPED
    try:
        return {**SHIPPED, **read_profiles(path.read_text(encoding="utf-8"), str(path))}
    except FileNotFoundError:
        raise InvalidInput(f"--resource-profiles: {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--resource-profiles: {path}: cannot be read: {error}") from error
    except InvalidDocument as error:
        raise InvalidInput(f"--resource-profiles: {error}") from None


def of_this_machine(profiles: Profiles) -> Profiles:
    """What of them has a meaning without a cluster: whether an engine runs on a GPU. Its memory is that of
    the GPU that is here."""
    return {name: ResourceProfile(gpus=one.gpus) for name, one in profiles.items()}
