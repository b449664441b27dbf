"""`DefaultImages`: images of pods whose object names none. Never written into objects."""

from dataclasses import dataclass

from mamba_api import names


@dataclass(frozen=True, slots=True)
class DefaultImages:
    """The operator's image settings: an upgraded operator brings the images of its own version."""

    engine: str = names.IMAGE
    gateway: str = names.CONTROL_PLANE_IMAGE
    pull_secrets: tuple[str, ...] = ()
    """Names of Secrets in each MambaDeployment's namespace."""

    def references(self) -> list[dict[str, str]]:
        """Return the references by which a pod names the pull secrets."""
        return [{"name": name} for name in self.pull_secrets]


OF_THIS_VERSION = DefaultImages()
