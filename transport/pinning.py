"""Trust in exactly one public key: the leader's own certificate, which no authority has signed.

The pin is the SHA-256 of the key (SubjectPublicKeyInfo, as in RFC 7469), so that a certificate may
be renewed with the same key. It travels with the address: https://HOST:PORT#pin=HEX.
"""

import hashlib
import re
import ssl
from typing import Final
from urllib.parse import urlsplit

from transport.errors import SwarmError

CONNECT_S: Final = 10.0
_PIN: Final = re.compile(r"[0-9a-f]{64}")


def with_pin(url: str, pin: str | None) -> str:
    """An address that carries its pin."""
    return f"{url}#pin={pin}" if pin else url


def split_pin(address: str) -> tuple[str, str | None]:
    """The bare URL and the pin, which is None where there is none.

    Raises:
        SwarmError: invalid-input for a fragment that is no pin.
    """
    url, mark, fragment = address.partition("#")
    if not mark:
        return url, None
    pin = fragment.removeprefix("pin=").lower()
    if pin == fragment.lower() or not _PIN.fullmatch(pin) or not url.startswith("https://"):
        raise SwarmError(
            "invalid-input",
            "what follows the # of a leader's address must be pin= and 64 hex digits, after https",
            hint="copy the whole address from the command that the leader shows",
        )
    return url.rstrip("/"), pin


def pin_of(certificate_pem: str) -> str:
    """The pin of a certificate's public key."""
    # Loaded only where a key is pinned: most addresses have none.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        Encoding,
        PublicFormat,
    )

    key = x509.load_pem_x509_certificate(certificate_pem.encode()).public_key()
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).hexdigest()


def trust(url: str, pin: str) -> ssl.SSLContext:
    """What trusts the holder of the pinned key at this address and nobody else. Blocks on a dial.

    Raises:
        SwarmError: unauthenticated; another key is shown.
        OSError: nothing answers there, or not with TLS.
    """
    address = urlsplit(url)
    host, port = address.hostname or "", address.port or 443
    shown = ssl.get_server_certificate((host, port), timeout=CONNECT_S)
    if pin_of(shown) != pin:
        raise SwarmError(
            "unauthenticated",
            f"the leader at {host} port {port} shows another key than the pinned one",
            hint="if the leader was set up anew, take its address from a fresh invite; if not, "
            "something stands between it and this machine",
        )
    context = ssl.create_default_context(cadata=shown)
    context.check_hostname = False  # the key itself is pinned
    # The pinned certificate is the anchor, whoever has signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
