"""Real cards as data, for plans on an inventory: datasheet figures, never measured ones.

Memory as sold (GB of 10^9 bytes is what a driver tells of it, a little less is free), bandwidth in
GB/s, and the float16 and float32 rates of the makers' datasheets in TFLOPS: dense, with matrix
units where a card has them. Real steps reach a part of that; plans compare by it all the same.
"""

from dataclasses import dataclass
from typing import Literal

from transport.cards import NumberFormat

Generation = Literal[
    "Pascal",
    "Turing",
    "Ampere",
    "Ada",
    "Hopper",
    "Blackwell",
    "Volta",
    "RDNA 2",
    "RDNA 3",
    "CDNA 3",
]
_OLD: tuple[NumberFormat, ...] = ("float32",)
_HALF: tuple[NumberFormat, ...] = ("float32", "float16", "int8", "nf4")
_ALL: tuple[NumberFormat, ...] = ("float32", "bfloat16", "float16", "int8", "nf4")


@dataclass(frozen=True)
class KnownCard:
    """One card, as its datasheet tells."""

    name: str
    memory_gb: float
    """10^9 bytes."""
    bandwidth_gb_s: float
    fp16_tflops: float
    fp32_tflops: float
    formats: tuple[NumberFormat, ...]
    generation: Generation
    kind: Literal["cuda", "rocm"] = "cuda"


KNOWN = (
    KnownCard("GTX 1050 Ti", 4.29, 112, 0.033, 2.1, _OLD, "Pascal"),
    KnownCard("GTX 1060 6GB", 6.44, 192, 0.068, 4.4, _OLD, "Pascal"),
    KnownCard("GTX 1070", 8.59, 256, 0.10, 6.5, _OLD, "Pascal"),
    KnownCard("GTX 1080 Ti", 11.81, 484, 0.18, 11.3, _OLD, "Pascal"),
    KnownCard("GTX 1650", 4.29, 128, 5.97, 2.98, _HALF, "Turing"),
    KnownCard("GTX 1660 SUPER", 6.44, 336, 10.05, 5.03, _HALF, "Turing"),
    KnownCard("RTX 2060", 6.44, 336, 51.6, 6.45, _HALF, "Turing"),
    KnownCard("RTX 2070 SUPER", 8.59, 448, 72.5, 9.06, _HALF, "Turing"),
    KnownCard("RTX 2080 Ti", 11.81, 616, 107.6, 13.4, _HALF, "Turing"),
    KnownCard("Tesla T4", 16.1, 320, 65.1, 8.1, _HALF, "Turing"),
    KnownCard("Tesla V100 16GB", 17.18, 900, 112.0, 14.0, _HALF, "Volta"),
    KnownCard("RTX 3050", 8.59, 224, 36.4, 9.1, _ALL, "Ampere"),
    KnownCard("RTX 3060", 12.88, 360, 51.2, 12.7, _ALL, "Ampere"),
    KnownCard("RTX 3070", 8.59, 448, 81.3, 20.3, _ALL, "Ampere"),
    KnownCard("RTX 3080", 10.74, 760, 119.1, 29.8, _ALL, "Ampere"),
    KnownCard("RTX 3090", 25.77, 936, 142.3, 35.6, _ALL, "Ampere"),
    KnownCard("RTX A4000", 17.18, 448, 76.7, 19.2, _ALL, "Ampere"),
    KnownCard("RTX A5000", 25.77, 768, 111.1, 27.8, _ALL, "Ampere"),
    KnownCard("RTX A6000", 51.54, 768, 154.8, 38.7, _ALL, "Ampere"),
    KnownCard("A100 80GB", 85.9, 2039, 312.0, 19.5, _ALL, "Ampere"),
    KnownCard("RTX 4060 Ti 16GB", 17.18, 288, 88.3, 22.1, _ALL, "Ada"),
    KnownCard("RTX 4070", 12.88, 504, 116.6, 29.1, _ALL, "Ada"),
    KnownCard("RTX 4080", 17.18, 717, 194.9, 48.7, _ALL, "Ada"),
    KnownCard("RTX 4090", 25.77, 1008, 330.3, 82.6, _ALL, "Ada"),
    KnownCard("H100 80GB", 85.9, 3350, 989.0, 67.0, _ALL, "Hopper"),
    KnownCard("H200", 151.0, 4800, 989.0, 67.0, _ALL, "Hopper"),
    KnownCard("RX 6800", 17.18, 512, 32.3, 16.2, _HALF, "RDNA 2", "rocm"),
    KnownCard("RX 7900 XTX", 25.77, 960, 122.8, 61.4, _ALL, "RDNA 3", "rocm"),
)

BY_NAME = {card.name.casefold(): card for card in KNOWN}
