"""The work by which a card's speed is measured: what a stage does, not one large product.

A transformer block with frozen weights, forward and the gradient of its input, for a few hundred
tokens. Operations are counted as the planner counts them: 4 a parameter and token. What a block
does besides (attention, norms, the gate) takes its time and counts no operations, so that the
figure is the speed at which parameters are really passed.

What stays estimated: the share of that besides is the one of this width and this length; a model
much narrower, or sequences much longer, take longer than the figure says.
"""

# B = sequences, T = tokens of each, D = hidden width, H = heads, K = width of a head

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

MEASURE_S = 1.2
"""Long enough that a quota on processor time, given out every tenth of a second, averages out."""
FEWEST = 3
PARTS_RUNS = 7
COPIED_BYTES = (256_000_000, 64_000_000)
"""Of a graphics card, of a processor: far more than its caches hold."""
HEAD_WIDTH = 64
OPERATIONS = 4
"""A parameter and token: forward 2, the input's gradient 2. Frozen weights get none."""


@dataclass(frozen=True)
class Shape:
    """Of the work: (B, T, D), and the width of the feed-forward layer."""

    sequences: int
    tokens: int
    hidden: int
    inner: int

    @property
    def params(self) -> int:
        """Parameters of the block's seven projections."""
        return 4 * self.hidden**2 + 3 * self.hidden * self.inner

    @property
    def operations(self) -> int:
        """Of one pass forward and back."""
        return OPERATIONS * self.params * self.sequences * self.tokens


CPU_SHAPE = Shape(sequences=2, tokens=128, hidden=512, inner=1408)
CARD_SHAPE = Shape(sequences=4, tokens=512, hidden=2048, inner=5632)
"""0.2 GB of weights in float32: a card of 4 GB holds it beside a desktop."""


class Work:
    """One block on a device, in a number format."""

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
        d, inner = shape.hidden, shape.inner
        sizes = {"q": (d, d), "k": (d, d), "v": (d, d), "o": (d, d)}
        sizes |= {"gate": (inner, d), "up": (inner, d), "down": (d, inner)}
        self.weights = {
            name: (torch.randn(size, device=device) * size[1] ** -0.5).to(dtype)
            for name, size in sizes.items()
        }
        rows = (shape.sequences, shape.tokens, d)
        self.given_BTD = torch.randn(rows, device=device).to(dtype).requires_grad_()
        self.grad_BTD = torch.randn(rows, device=device).to(dtype)

    def run(self) -> None:
        """Forward, and the gradient of the input."""
        (_,) = torch.autograd.grad(self._block(self.given_BTD), self.given_BTD, self.grad_BTD)

    def _block(self, hidden_BTD: Tensor) -> Tensor:
        hidden_BTD = hidden_BTD + self._attention(_norm(hidden_BTD))
        normed = _norm(hidden_BTD)
        gate = functional.silu(self._project("gate", normed))
        return hidden_BTD + self._project("down", gate * self._project("up", normed))

    def _attention(self, hidden_BTD: Tensor) -> Tensor:
        q, k, v = (self._heads(self._project(name, hidden_BTD)) for name in "qkv")
        mixed_BHTK = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self._project("o", mixed_BHTK.transpose(1, 2).flatten(2))

    def _heads(self, rows_BTD: Tensor) -> Tensor:
        return rows_BTD.reshape(*rows_BTD.shape[:2], -1, HEAD_WIDTH).transpose(1, 2)

    def _project(self, name: str, rows: Tensor) -> Tensor:
        return functional.linear(rows, self.weights[name])


def _norm(hidden_BTD: Tensor) -> Tensor:
    return functional.rms_norm(hidden_BTD, hidden_BTD.shape[-1:])


@dataclass(frozen=True)
class Figures:
    """What was measured of a card in one number format."""

    tflops: float
    cold_tflops: float
    matmul_tflops: float
    attention_tflops: float
    memory_bytes_s: float


def figures(
    shape: Shape, device: torch.device, dtype: torch.dtype, clock: Callable[[], float]
) -> Figures:
    """Measure a card: the work of a stage cold and warm, then its parts alone."""
    work = Work(shape, device, dtype)
    began = clock()
    work.run()
    wait(device)
    cold = shape.operations / (clock() - began) / 1e12
    warm = _warm_tflops(work, shape, device, clock)
    rows = (shape.sequences * shape.tokens, shape.hidden)
    left = torch.ones(rows, device=device).to(dtype)
    heads = work.given_BTD.detach().reshape(*work.given_BTD.shape[:2], -1, HEAD_WIDTH)
    heads = heads.transpose(1, 2).contiguous()
    # Written once: a page that never was is read from nowhere.
    copied = torch.ones(COPIED_BYTES[device.type == "cpu"], dtype=torch.uint8, device=device)
    target = torch.empty_like(copied)

    def median_s(run: Callable[[], object]) -> float:
        times = []
        for _ in range(PARTS_RUNS + 1):
            began = clock()
            run()
            wait(device)
            times.append(clock() - began)
        return statistics.median(times[1:])  # the first one warms up

    product = 2 * rows[0] * shape.hidden * shape.inner
    # Two products for each pair of tokens, as if no pair were masked.
    attention = 4 * shape.sequences * shape.tokens**2 * shape.hidden
    up = work.weights["up"]
    return Figures(
        tflops=warm,
        cold_tflops=cold,
        matmul_tflops=product / median_s(lambda: functional.linear(left, up)) / 1e12,
        attention_tflops=attention
        / median_s(lambda: functional.scaled_dot_product_attention(heads, heads, heads))
        / 1e12,
        memory_bytes_s=2 * copied.numel() / median_s(lambda: target.copy_(copied)),
    )


def tflops(
    shape: Shape, device: torch.device, dtype: torch.dtype, clock: Callable[[], float]
) -> float:
    """Measured speed of the work, 10^12 operations a second.

    All passes of at least MEASURE_S over their whole time: a median would show the passes that
    were not held up, and a stage's step is held up like all of them.
    """
    work = Work(shape, device, dtype)
    work.run()  # compiles, warms up, and uses what a quota has saved up
    wait(device)
    return _warm_tflops(work, shape, device, clock)


def _warm_tflops(
    work: Work, shape: Shape, device: torch.device, clock: Callable[[], float]
) -> float:
    passes, began = 0, clock()
    while True:
        work.run()
        wait(device)
        passes += 1
        took = clock() - began
        if passes >= FEWEST and took >= MEASURE_S:
            return shape.operations * passes / took / 1e12


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
