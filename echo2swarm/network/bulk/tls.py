"""The certificate of this process, and TLS 1.3 that trusts one named certificate.

No authority vouches for anybody here: the other side's certificate was named on a
libp2p stream whose end had proven its key, so it is recognised by its SHA-256.
"""

import datetime as dt
import os
import ssl
from hashlib import sha256
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from protocols.bulk import ALPN

# Nobody looks at the dates, and clocks may be wrong: the certificate dies with its process.
_NOT_BEFORE: Final = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_NOT_AFTER: Final = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)


class Certificate:
    """A key pair and a self-signed certificate, made anew, for one run of one process."""

    def __init__(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        nobody = x509.Name([])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(nobody)
            .issuer_name(nobody)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOT_BEFORE)
            .not_valid_after(_NOT_AFTER)
            .sign(key, hashes.SHA256())
        )
        self.sha256 = sha256(certificate.public_bytes(Encoding.DER)).digest()
        """What the other side is told to expect."""
        self._pem = key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        ) + certificate.public_bytes(Encoding.PEM)

    def accepting(self) -> ssl.SSLContext:
        """Return the context for connections that others make to us."""
        context = _context(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0  # No resumption: each connection proves its certificate.
        # The ssl module reads keys from files only; this one is in memory, and unnamed.
        file = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            os.write(file, self._pem)
            context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        return context


def dialling() -> ssl.SSLContext:
    """Return the context for connections that we make; :func:`is_named` has to follow."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # The handshake still proves that the other side has the key of the certificate it shows.
    context.verify_mode = ssl.CERT_NONE
    return context


def _context(side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    return context


def is_ours(connection: ssl.SSLSocket) -> bool:
    """Whether the other side speaks the bulk protocol; to be asked after the handshake."""
    return connection.selected_alpn_protocol() == ALPN


def is_named(connection: ssl.SSLSocket, certificate_sha256: bytes) -> bool:
    """Whether the other side is who has this certificate; to be asked after the handshake."""
    shown = connection.getpeercert(binary_form=True)
    return shown is not None and sha256(shown).digest() == certificate_sha256
