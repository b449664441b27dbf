"""Kubeconfig files stand alone and are private; certificates are what a server and a client can use."""

import base64
import ssl
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from testcluster import kubeconfig
from testcluster.errors import CommandFailed, ToolMissing
from testcluster.pki import Authority, Identity, extension_text

GIVEN = kubeconfig.Access("https://127.0.0.1:6443", b"authority", b"certificate", b"key")
ADMIN = Identity("admin", "/O=system:masters/CN=admin", ("DNS:localhost", "IP:127.0.0.1"))


def test_the_current_context_leads_to_server_and_user() -> None:
    document = kubeconfig.document(GIVEN)

    [context] = document["contexts"]
    [cluster] = document["clusters"]
    [user] = document["users"]
    assert document["current-context"] == context["name"]
    assert context["context"] == {"cluster": cluster["name"], "user": user["name"]}
    assert cluster["cluster"]["server"] == "https://127.0.0.1:6443"


def test_the_certificates_are_inside() -> None:
    document = kubeconfig.document(GIVEN)

    def decoded(text: str) -> bytes:
        return base64.b64decode(text)

    user = document["users"][0]["user"]
    assert decoded(document["clusters"][0]["cluster"]["certificate-authority-data"]) == b"authority"
    assert decoded(user["client-certificate-data"]) == b"certificate"
    assert decoded(user["client-key-data"]) == b"key"


def test_the_file_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = kubeconfig.write(tmp_path / "config", GIVEN)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert yaml.safe_load(path.read_text()) == kubeconfig.document(GIVEN)


def test_an_issued_certificate_serves_and_is_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")

    made = authority.issue(ADMIN)

    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.certificate, made.key)
    client = ssl.create_default_context(cafile=str(authority.root.certificate))
    shake_hands(server, client, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(server, client, "127.0.0.2")


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Perform a TLS handshake in memory. Raises the client's error."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(down, up, server_hostname=name)
    far = server.wrap_bio(up, down, server_side=True)
    open_ends = [near, far]
    while open_ends:
        for end in list(open_ends):
            try:
                end.do_handshake()
                open_ends.remove(end)
            except ssl.SSLWantReadError:
                continue


def test_the_subject_says_user_and_group(tmp_path: Path) -> None:
    made = Authority(tmp_path / "pki").issue(ADMIN)

    argv = ["openssl", "x509", "-in", str(made.certificate), "-noout", "-subject", "-nameopt", "RFC2253"]
    subject = subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    assert "CN=admin" in subject
    assert "O=system:masters" in subject


def test_the_key_that_signs_tokens_matches_the_one_that_checks_them(tmp_path: Path) -> None:
    private, public = Authority(tmp_path / "pki").signing_pair("tokens")

    again = subprocess.run(
        ["openssl", "ec", "-in", str(private), "-pubout"], capture_output=True, text=True, check=True
    )

    assert public.read_text() == again.stdout


def test_a_certificate_is_for_both_ends_of_a_connection() -> None:
    text = extension_text(ADMIN)

    assert "subjectAltName=DNS:localhost,IP:127.0.0.1\n" in text
    assert "serverAuth,clientAuth" in text
    assert "CA:FALSE" in text


def test_what_openssl_objects_to_is_told(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")

    with pytest.raises(CommandFailed, match="not-a-subject"):
        authority.issue(Identity("bad", "not-a-subject", ("DNS:x",)))


def test_without_openssl_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ToolMissing, match="apt-get install openssl"):
        Authority(tmp_path / "pki")
