"""`DefaultImages`: what pods are started from where an object names no image. Never written into objects."""

from dataclasses import dataclass

from mamba_api import names


@dataclass(frozen=True, slots=True)
class DefaultImages:
    """The operator's own settings, so that an upgraded operator brings the images that belong to it."""

    engine: str = names.IMAGE
    gateway: str = names.CONTROL_PLANE_IMAGE
    pull_secrets: tuple[str, ...] = ()
    """Names of Secrets in each MambaDeployment's namespace."""

    def references(self) -> list[dict[str, str]]:
        """The pull secrets as a pod names them."""
        return [{"name": name} for name in self.pull_secrets]


OF_THIS_VERSION = DefaultImages()
