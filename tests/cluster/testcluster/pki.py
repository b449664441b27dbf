"""Keys and certificates of a test cluster, made with the openssl program.

Elliptic-curve keys, because they are made in a millisecond. Valid for some days: a cluster lives minutes.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testcluster.errors import CommandFailed, ToolMissing

DAYS = "7"
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key, PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Identity:
    """Whom a certificate names."""

    name: str
    """File name."""
    subject: str
    """Such as /O=system:masters/CN=admin: groups and user in Kubernetes' eyes."""
    names: tuple[str, ...]
    """Subject alternative names: DNS:… and IP:…"""


class Authority:
    """A certificate authority in a folder; every call of `issue` adds a certificate to it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.root = Certificate(folder / "ca.crt", folder / "ca.key")
        _openssl(
            "req", "-x509", *CURVE, "-keyout", self.root.key, "-out", self.root.certificate,
            "-days", DAYS, "-subj", "/CN=mambaserve-test-ca",
        )  # fmt: skip

    def issue(self, identity: Identity) -> Certificate:
        """Issue a certificate for server and client use."""
        certificate = Certificate(self.folder / f"{identity.name}.crt", self.folder / f"{identity.name}.key")
        request = self.folder / f"{identity.name}.csr"
        extensions = self.folder / f"{identity.name}.ext"
        extensions.write_text(extension_text(identity))
        _openssl("req", *CURVE, "-keyout", certificate.key, "-out", request, "-subj", identity.subject)
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.root.certificate, "-CAkey", self.root.key,
            "-CAcreateserial", "-out", certificate.certificate, "-days", DAYS, "-extfile", extensions,
        )  # fmt: skip
        return certificate

    def signing_pair(self, name: str) -> tuple[Path, Path]:
        """Return (private key, public key) for service account tokens."""
        private, public = self.folder / f"{name}.key", self.folder / f"{name}.pub"
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", private)
        _openssl("ec", "-in", private, "-pubout", "-out", public)
        return private, public


def extension_text(identity: Identity) -> str:
    """Return the openssl extension file of a certificate."""
    return (
        f"subjectAltName={','.join(identity.names)}\n"
        "basicConstraints=critical,CA:FALSE\n"
        "keyUsage=critical,digitalSignature\n"
        "extendedKeyUsage=serverAuth,clientAuth\n"
    )


def _openssl(*arguments: str | Path) -> None:
    if not (program := shutil.which("openssl")):
        raise ToolMissing("the program openssl is missing: apt-get install openssl")
    argv = [program, *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        raise CommandFailed(f"`{' '.join(argv)}` ended with {done.returncode}: {done.stderr.strip()}")
