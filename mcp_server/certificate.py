"""The leader's own certificate: made once, renewed with the same key when its names change.

Nobody has signed it; whoever dials the leader pins its key (transport.pinning).
"""

import datetime as dt
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from control.store.files import write_whole
from transport.errors import SwarmError
from transport.pinning import pin_of

YEARS = 10
ALWAYS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class TlsFiles:
    """A certificate and its key, and what pins it."""

    cert: Path
    key: Path
    pin: str
    is_pinned: bool
    """No authority has signed it, so whoever dials must pin its key."""


def own_files(folder: Path, public_url: str, now: float) -> TlsFiles:
    """The leader's own certificate for an address.

    Args:
        folder: where key and certificate are kept.
        now: unix seconds.
    """
    names = (urlsplit(public_url).hostname or "", *ALWAYS)
    cert, key_path = folder / "leader.cert.pem", folder / "leader.tls-key.pem"
    key = _own_key(key_path)
    at = dt.datetime.fromtimestamp(now, dt.UTC)
    if not _still_good(cert, key, names, at):
        write_whole(cert, _certificate(key, names, at), mode=0o644)
    return TlsFiles(cert, key_path, pin_of(cert.read_text("ascii")), is_pinned=True)


def given_files(cert: Path, key: Path) -> TlsFiles:
    """A certificate that somebody else made.

    Raises:
        SwarmError: invalid-input when the two do not belong together or cannot be read.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
        told = cert.read_text("utf-8")
        shown = x509.load_pem_x509_certificate(told.encode())
        return TlsFiles(cert, key, pin_of(told), is_pinned=shown.issuer == shown.subject)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise SwarmError(
            "invalid-input",
            f"{cert} and {key} cannot be used as a certificate and its key "
            f"({type(error).__name__}: {str(error)[:120]})",
            hint="name PEM files: --tls-cert with the certificate first, --tls-key with its key, "
            "which has no password",
        ) from None


def _own_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key
    except (FileNotFoundError, ValueError):
        pass
    made = ec.generate_private_key(ec.SECP256R1())
    told = made.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, told, mode=0o600)
    return made


def _still_good(
    path: Path, key: ec.EllipticCurvePrivateKey, names: Sequence[str], now: dt.datetime
) -> bool:
    """Whether a stored certificate is of this key, for these names, and good for another year."""
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
        told = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (FileNotFoundError, ValueError, x509.ExtensionNotFound):
        return False
    is_ours = found.public_key() == key.public_key()
    year = dt.timedelta(days=365)
    return is_ours and set(told) == set(_names(names)) and found.not_valid_after_utc > now + year


def _certificate(key: ec.EllipticCurvePrivateKey, names: Sequence[str], now: dt.datetime) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Swarm leader")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of other machines may be a day off.
        .not_valid_before(now - dt.timedelta(days=2))
        .not_valid_after(now + dt.timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectAlternativeName(_names(names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _names(names: Sequence[str]) -> list[x509.GeneralName]:
    told: list[x509.GeneralName] = []
    for name in dict.fromkeys(name for name in names if name):
        try:
            told.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            told.append(x509.DNSName(name))
    return told
