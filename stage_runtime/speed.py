"""The work by which a card's speed is measured: what a stage does, not one large product.

A transformer block with frozen weights and adapters on its attention, forward and back, for a few
hundred tokens. Operations are counted as the planner counts them: 4 a parameter and token. What a
block does besides (attention, norms, rotation, the gate, adapters) takes its time and counts no
operations, so that the figure is the speed at which parameters are really passed.

Narrow blocks have more of that besides for each parameter, so blocks of several sizes are run, and
the planner takes the figure at the size of the model's own. What stays estimated: much longer
sequences take longer than the figure says.
"""

# B = sequences, T = tokens of each, D = hidden width, H = heads, K = width of a head

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
CPU_SIZES = (Shape(2, 128, 256, 704), Shape(1, 128, 1024, 2816))
CARD_SHAPE = Shape(sequences=4, tokens=512, hidden=2048, inner=5632)
"""0.2 GB of weights in float32: a card of 4 GB holds it beside a desktop."""
CARD_SIZES = (Shape(2, 512, 256, 704), Shape(4, 512, 1024, 2816))
FEW = Shape(sequences=1, tokens=16, hidden=256, inner=704)
"""So few tokens that the calls themselves take most of the time."""
SIZE_S = 0.6
"""How long each further size is run."""
RANK = 8


class Work:
    """One block on a device, in a number format."""

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
        d, inner = shape.hidden, shape.inner
        sizes = {"q": (d, d), "k": (d, d), "v": (d, d), "o": (d, d)}
        adapted = tuple(sizes)
        sizes |= {"gate": (inner, d), "up": (inner, d), "down": (d, inner)}
        self.weights = {
            name: (torch.randn(size, device=device) * size[1] ** -0.5).to(dtype)
            for name, size in sizes.items()
        }
        self.scale_D = torch.ones(d, device=device, dtype=dtype)
        angles = torch.randn(shape.tokens, HEAD_WIDTH, device=device)
        self.cos_TK, self.sin_TK = angles.cos().to(dtype), angles.sin().to(dtype)
        # Adapters are float32 whatever the layers compute in.
        self.adapters = {
            name: (
                torch.randn(RANK, d, device=device).mul_(0.01).requires_grad_(),
                torch.randn(d, RANK, device=device).mul_(0.01).requires_grad_(),
            )
            for name in adapted
        }
        rows = (shape.sequences, shape.tokens, d)
        self.given_BTD = torch.randn(rows, device=device).to(dtype).requires_grad_()
        self.grad_BTD = torch.randn(rows, device=device).to(dtype)

    def run(self) -> None:
        """Forward, and the gradients of the input and the adapters."""
        trained = [one for pair in self.adapters.values() for one in pair]
        made = self._block(self.given_BTD)
        torch.autograd.grad(made, [self.given_BTD, *trained], self.grad_BTD)

    def _block(self, hidden_BTD: Tensor) -> Tensor:
        hidden_BTD = hidden_BTD + self._attention(self._norm(hidden_BTD))
        normed = self._norm(hidden_BTD)
        gate = functional.silu(self._project("gate", normed))
        return hidden_BTD + self._project("down", gate * self._project("up", normed))

    def _attention(self, hidden_BTD: Tensor) -> Tensor:
        q, k, v = (self._heads(self._project(name, hidden_BTD)) for name in "qkv")
        mixed_BHTK = functional.scaled_dot_product_attention(
            self._turned(q), self._turned(k), v, is_causal=True
        )
        return self._project("o", mixed_BHTK.transpose(1, 2).flatten(2))

    def _turned(self, rows_BHTK: Tensor) -> Tensor:
        """With rotary positions."""
        left, right = rows_BHTK.chunk(2, dim=-1)
        return rows_BHTK * self.cos_TK + torch.cat((-right, left), dim=-1) * self.sin_TK

    def _heads(self, rows_BTD: Tensor) -> Tensor:
        return rows_BTD.reshape(*rows_BTD.shape[:2], -1, HEAD_WIDTH).transpose(1, 2)

    def _project(self, name: str, rows: Tensor) -> Tensor:
        made = functional.linear(rows, self.weights[name])
        if name not in self.adapters:
            return made
        down, up = self.adapters[name]
        added = functional.linear(functional.linear(rows.float(), down), up)
        return (made + added).to(made.dtype)

    def _norm(self, hidden_BTD: Tensor) -> Tensor:
        """Root mean square in float32, as models' own norms do."""
        wide = hidden_BTD.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.scale_D * wide.to(hidden_BTD.dtype)


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
    warm = _warm_tflops(work, shape, device, clock, MEASURE_S)
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
    shape: Shape,
    device: torch.device,
    dtype: torch.dtype,
    clock: Callable[[], float],
    at_least_s: float | None = None,
) -> float:
    """Measured speed of the work, 10^12 operations a second.

    All passes of at least MEASURE_S, or as told, over their whole time: a median would show the
    passes that were not held up, and a stage's step is held up like all of them.
    """
    at_least_s = MEASURE_S if at_least_s is None else at_least_s
    work = Work(shape, device, dtype)
    work.run()  # compiles, warms up, and uses what a quota has saved up
    wait(device)
    return _warm_tflops(work, shape, device, clock, at_least_s)


def _warm_tflops(
    work: Work,
    shape: Shape,
    device: torch.device,
    clock: Callable[[], float],
    at_least_s: float,
) -> float:
    passes, began = 0, clock()
    while True:
        work.run()
        wait(device)
        passes += 1
        took = clock() - began
        if passes >= FEWEST and took >= at_least_s:
            return shape.operations * passes / took / 1e12


def sized(
    usual: Shape,
    usual_tflops: float,
    device: torch.device,
    dtype: torch.dtype,
    clock: Callable[[], float],
) -> dict[str, Any]:
    """The seconds that a block takes whatever it computes, and figures at several sizes without
    those seconds.

    Returns:
        {"block_s": s, "sizes": [{"layer_params": n, "tflops": x}, ...]}.
    """
    others = CPU_SIZES if device.type == "cpu" else CARD_SIZES
    took = {usual: usual.operations / usual_tflops / 1e12}
    for shape in (*others, FEW):
        took[shape] = shape.operations / tflops(shape, device, dtype, clock, SIZE_S) / 1e12
    narrow = others[0]
    # Two counts of tokens at one width tell what does not grow with them.
    share = narrow.operations / narrow.params / (FEW.operations / FEW.params)
    block_s = max(0.0, (took[FEW] * share - took[narrow]) / (share - 1))
    block_s = min(block_s, took[FEW])
    sizes = sorted(
        (shape.params, shape.operations / (took[shape] - min(block_s, took[shape] / 2)) / 1e12)
        for shape in (usual, *others)
    )
    told = [{"layer_params": params, "tflops": figure} for params, figure in sizes]
    return {"block_s": block_s, "sizes": told}


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
