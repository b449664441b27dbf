"""Certificates of the external metrics API, each with its own key pair and authority, rotated regularly.

They exist in memory only: the next holder of the lease creates new ones and registers them at the API
server. The authority's key signs one certificate and is then discarded, so that nobody can sign a second
one.
"""

import datetime
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLOCK_TOLERANCE = datetime.timedelta(hours=1)
"""Largest tolerated difference between clocks."""


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A certificate, its key and its authority, as PEM texts."""

    authority: bytes
    """Certificate of the authority, which clients trust."""
    certificate: bytes
    key: bytes
    until: datetime.datetime
    """Time at which the certificate expires."""


def serving_certificate(
    name: str, now: datetime.datetime, valid_for: datetime.timedelta
) -> ServingCertificate:
    """Return a certificate for a server whose DNS name is `name`, valid for `valid_for` from `now` on."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    # The identifiers of their keys distinguish two authorities of the same name in a bundle.
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mambaserve external metrics")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mambaserve-operator")])
    until = now + valid_for

    def builder(name: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_TOLERANCE)
            .not_valid_after(until)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
                critical=False,
            )
        )

    authority = (
        builder(issuer, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        builder(subject, key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    form = serialization.Encoding.PEM
    private = key.private_bytes(
        form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )  # fmt: skip
    return ServingCertificate(authority.public_bytes(form), certificate.public_bytes(form), private, until)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=signs_certificates,
        crl_sign=signs_certificates, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def load_certificate(context: ssl.SSLContext, serving: ServingCertificate) -> None:
    """Use the certificate for new handshakes; open connections stay as they are."""
    # The standard library reads keys only from files.
    with tempfile.TemporaryDirectory(prefix="mambaserve-") as folder:
        both = Path(folder, "pem")
        both.touch(mode=0o600)
        both.write_bytes(serving.certificate + serving.key)
        context.load_cert_chain(both)
