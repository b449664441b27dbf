"""The resource profiles that a command accepts: the shipped ones, and those of a cluster from a file."""

from pathlib import Path

from mamba_api.errors import InvalidDocument
from mamba_api.v1alpha1.profiles import Profiles, ResourceProfile, read_profiles
from mamba_cli.errors import InvalidInput
from mamba_planner.cards.shipped_profiles import SHIPPED


def known_profiles(path: Path | None) -> Profiles:
    """Return the shipped profiles, and the profiles in the file at `path`; None = no file.

    A profile of the file replaces a shipped one with its name. Raises `InvalidInput` with all problems of the
    file.
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
    """Return the profiles reduced to the number of GPUs, the only field that acts without a cluster."""
    return {name: ResourceProfile(gpus=profile.gpus) for name, profile in profiles.items()}
