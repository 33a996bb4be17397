"""Where stages listen, and what their neighbours are told: read from two options, or refused."""

import pytest

from agents.fellow.listening import Listening, listening
from transport.errors import SwarmError

OWN = "127.0.0.1"


@pytest.mark.parametrize(
    ("listen", "announce", "wanted"),
    [
        ("", [], Listening(OWN)),
        ("192.168.1.20", [], Listening("192.168.1.20")),
        ("192.168.1.20:7500", [], Listening("192.168.1.20", 7500)),
        ("fd00::20", [], Listening("fd00::20")),
        (
            "[fd00::20]:7500",
            ["[2001:db8::5]:7501", "203.0.113.5:7500"],
            Listening(
                "fd00::20",
                7500,
                announced=("tcp://[2001:db8::5]:7501", "tcp://203.0.113.5:7500"),
            ),
        ),
    ],
)
def test_addresses_are_read(listen: str, announce: list[str], wanted: Listening) -> None:
    assert listening(listen, announce, OWN) == wanted


@pytest.mark.parametrize(
    ("listen", "announce", "word"),
    [
        ("home.lan", [], "no IP address"),
        ("1.2.3.4:0", [], "no IP address"),
        ("1.2.3.4:99999", [], "no IP address"),
        ("1.2.3.4", ["5.6.7.8:1"], "always listen on"),
        ("", ["5.6.7.8:1"], "always listen on"),
        ("1.2.3.4:7500", ["5.6.7.8"], "has no port"),
        ("1.2.3.4:7500", ["router:7500"], "no IP address"),
    ],
)
def test_what_is_no_address_is_refused(listen: str, announce: list[str], word: str) -> None:
    with pytest.raises(SwarmError, match=word) as refusal:
        listening(listen, announce, OWN)
    assert refusal.value.code == "invalid-input"
