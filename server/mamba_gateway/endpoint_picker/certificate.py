"""The certificate of the endpoint picker: read from files, which may be renewed, or self-signed.

Proxies of the Gateway API use TLS to a picker and, by default, accept any certificate.
"""

import datetime
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from mamba_telemetry.logs import get_logger

log = get_logger(__name__)

VALID_FOR = datetime.timedelta(days=3650)
"""Validity of a self-signed certificate. No proxy checks it, and it exists only as long as the process."""


class CertificateError(ValueError):
    """The certificate or its key cannot be read or used; the message names the options and the files."""


def self_signed(name: str) -> tuple[bytes, bytes]:
    """Return a new key and a self-signed certificate for `name`, both in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # the clocks of the two sides may differ
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, certificate.public_bytes(serialization.Encoding.PEM)


class CertificateFiles:
    """PEM files of a certificate (with its chain) and its key, which are read again after a change."""

    def __init__(self, certificate: str, key: str) -> None:
        self._paths = (Path(key), Path(certificate))
        self._stamp: tuple[tuple[int, int], ...] = ()

    def read(self) -> tuple[bytes, bytes]:
        """Return the key and the certificate from the files. Raises CertificateError."""
        options = f"--endpoint-picker-key {self._paths[0]}, --endpoint-picker-certificate {self._paths[1]}"
        try:
            self._stamp = self._stamps()
            key, certificate = (path.read_bytes() for path in self._paths)
            public = x509.load_pem_x509_certificate(certificate).public_key()
            private = serialization.load_pem_private_key(key, password=None)
        except (OSError, ValueError, TypeError) as error:
            raise CertificateError(f"{options}: {error}") from None
        if _bytes_of(private.public_key()) != _bytes_of(public):
            raise CertificateError(f"{options}: the key is not the certificate's")
        return key, certificate

    def changed(self) -> bool:
        """Return whether the files may have changed since they were read."""
        try:
            return self._stamps() != self._stamp
        except OSError:
            return False  # the files are being replaced at this moment

    def _stamps(self) -> tuple[tuple[int, int], ...]:
        return tuple((stat.st_mtime_ns, stat.st_ino) for stat in (path.stat() for path in self._paths))


def _bytes_of(public: object) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(public.public_bytes(serialization.Encoding.DER, form))  # type: ignore[attr-defined]


def credentials(files: CertificateFiles | None, name: str) -> grpc.ServerCredentials:
    """Return the TLS credentials of a server. Raises CertificateError."""
    if files is None:
        return grpc.ssl_server_credentials([self_signed(name)])
    first = grpc.ssl_server_certificate_configuration([files.read()])

    def fetch() -> grpc.ServerCertificateConfiguration | None:  # called at each handshake; None = as before
        if not files.changed():
            return None
        try:
            return grpc.ssl_server_certificate_configuration([files.read()])
        except CertificateError as error:
            log.error(
                "certificate_unusable", reason=str(error), remedy="the previous certificate stays in use"
            )
            return None

    return grpc.dynamic_ssl_server_credentials(first, fetch)
