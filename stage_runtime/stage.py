"""One stage as PyTorch's pipeline sees it: tokens or hidden states in, hidden states out.

Wraps each block: a guard that stops computing when the pipeline has failed, the dropout's seed,
recompute, and the move to the block's card. Does not know links, data or updates.
"""

# B = sequences of a micro-batch, T = tokens, D = hidden width

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from stage_runtime.bottleneck import Bottleneck
from stage_runtime.load import LoadedStage
from stage_runtime.lora_linear import LoraLinear
from stage_runtime.marks import RECOMPUTE, Marks
from stage_runtime.recompute import Rebuilds
from transport.orders import StageOrder, TrainSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Moment:
    """Where training is: what dropout is drawn from."""

    seed: int
    step: int = 0
    micro_batch: int = -1

    def begin_step(self, step: int) -> None:
        """The next forward is the step's first micro-batch."""
        self.step, self.micro_batch = step, -1

    def dropout_seed(self, layer: int, projection: str) -> int:
        """A pure function of (seed, step, micro-batch, global layer, projection in it)."""
        text = f"{self.seed}:{self.step}:{self.micro_batch}:{layer}:{projection}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True)
class BlockPlan:
    """What every block of a stage shares."""

    moment: Moment
    guard: Callable[[], None]
    """Raises when the pipeline has failed; called at every block, forward and backward."""
    enter_card: Callable[[int], None]
    """Told the card whose block computes now."""
    rebuilds: Rebuilds | None
    """None: blocks keep what backward needs."""
    marks: Marks = field(default_factory=Marks)


class Block(nn.Module):
    """A decoder block with its guard, dropout seed, recompute and card."""

    def __init__(
        self, inner: nn.Module, layer: int, plan: BlockPlan, card: int, device: torch.device
    ) -> None:
        super().__init__()
        self.inner = inner
        self.layer = layer
        self.plan = plan
        self.card = card
        self.device = device
        self.adapters = {
            name: module for name, module in inner.named_modules() if isinstance(module, LoraLinear)
        }

    def __getattr__(self, name: str) -> Any:
        """Families ask their blocks for attributes such as attention_type."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, hidden_BTD: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self._enter()
        args, kwargs = _on(self.device, args), _on(self.device, kwargs)
        hidden_BTD = hidden_BTD.to(self.device)
        seeds, ran = self._dropout_seeds(), False

        def run(hidden: Tensor) -> Tensor:
            nonlocal ran
            again, ran = ran, True
            # Once more in a recompute, when others have come and gone.
            for adapter, seed in seeds:
                adapter.dropout_seed = seed
            with self._marked(again):
                output = self.inner(hidden, *args, **kwargs)
            assert isinstance(output, Tensor)
            return output

        if self.plan.rebuilds is not None and self._wants_backward(hidden_BTD):
            output = self.plan.rebuilds.run(run, hidden_BTD, self._enter)
        else:
            output = run(hidden_BTD)
        assert isinstance(output, Tensor)
        if output.requires_grad:
            output.register_hook(self._before_backward)  # type: ignore[no-untyped-call]
        return output

    def _wants_backward(self, hidden: Tensor) -> bool:
        """Whether a gradient comes here: none does where nothing trains in the block or before."""
        return torch.is_grad_enabled() and (
            hidden.requires_grad or any(p.requires_grad for p in self.inner.parameters())
        )

    def _dropout_seeds(self) -> list[tuple[LoraLinear, int]]:
        if not self.training:
            return []
        moment, layer = self.plan.moment, self.layer
        return [
            (adapter, moment.dropout_seed(layer, name))
            for name, adapter in self.adapters.items()
            if adapter.shape.dropout > 0
        ]

    def _marked(self, again: bool) -> AbstractContextManager[None]:
        """The second run of a block's forward is the recompute of its backward."""
        marks = self.plan.marks
        return marks.of(RECOMPUTE) if again and marks.sees_blocks else nullcontext()

    def _enter(self) -> None:
        self.plan.guard()
        self.plan.enter_card(self.card)

    def _before_backward(self, _grad: Tensor) -> None:
        self._enter()


def _on(device: torch.device, value: Any) -> Any:
    """The same nested arguments with every tensor on the device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, (tuple, list)):
        return type(value)(_on(device, one) for one in value)
    if isinstance(value, dict):
        return {key: _on(device, one) for key, one in value.items()}
    return value


def wrap_blocks(
    stage: LoadedStage, plan: BlockPlan, places: list[tuple[int, torch.device]]
) -> None:
    """Put each block of the stage into a Block; `places` has (card, device) of each."""
    blocks = stage.blocks
    for local, (card, device) in enumerate(places):
        layer = stage.span.first_layer + local
        blocks[local] = Block(blocks[local].to(device), layer, plan, card, device)


class StageModule(nn.Module):
    """What PipelineStage runs: (B, T) int64 tokens or (B, T, D) hidden -> (B, T, D) hidden.

    The last stage gives hidden states after the final norm, in the layers' dtype; the head is in
    the loss. Others give what crosses the boundary, in the settings' dtype: hidden states, or what
    a learned bottleneck makes of them.
    """

    def __init__(
        self,
        stage: LoadedStage,
        moment: Moment,
        settings: TrainSettings,
        bottleneck: Bottleneck | None = None,
        rebuilds: Rebuilds | None = None,
    ) -> None:
        super().__init__()
        self.bottleneck = bottleneck
        self.hidden = stage.facts.hidden
        self.body = stage.body
        self.rebuilds = rebuilds
        self.is_first, self.is_last = stage.span.is_first, stage.span.is_last
        self.moment = moment
        self.positions: Tensor | None = None
        """(batch, T) of the batch that runs, where documents do not see each other."""
        self.dtype = DTYPES[settings.dtype]
        # A full fine-tune keeps float32 weights and computes in the settings' dtype.
        self.autocast = settings.method == "full" and self.dtype != torch.float32

    def forward(self, given: Tensor) -> Tensor:
        self.moment.micro_batch += 1
        if self.rebuilds is not None and torch.is_grad_enabled():
            self.rebuilds.begin_micro_batch()
        name = "input_ids" if self.is_first else "inputs_embeds"
        if self.bottleneck is not None:
            given = self.bottleneck.rebuild(given)
        more = self._positions(given)
        with self._computing(given.device):
            hidden = self.body(**{name: given}, **more, use_cache=False).last_hidden_state
        assert isinstance(hidden, Tensor)
        hidden = hidden.to(self.dtype)
        return hidden if self.bottleneck is None else self.bottleneck.squeeze(hidden)

    def _positions(self, given: Tensor) -> dict[str, Tensor]:
        """Of this micro-batch; its masks follow from them. Nothing where positions just go on."""
        if self.positions is None:
            return {}
        first = self.moment.micro_batch * given.shape[0]
        return {"position_ids": self.positions[first : first + given.shape[0]].to(given.device)}

    def width(self, *, inward: bool) -> int:
        """Values a token that comes from (inward) or goes to a neighbour."""
        if self.bottleneck is None:
            return self.hidden
        return self.bottleneck.width(self.hidden, inward=inward)

    def _computing(self, device: torch.device) -> AbstractContextManager[Any]:
        return torch.autocast(device.type, self.dtype) if self.autocast else nullcontext()


def pipeline_stage(
    module: StageModule, order: StageOrder, device: torch.device, group: Any
) -> PipelineStage:
    """The stage with shapes fixed from the order: nothing is ever learnt from a neighbour."""
    settings = order.settings
    rows = settings.batch_size // settings.micro_batches
    tokens_BT = torch.empty((rows, settings.seq_len), dtype=torch.int64, device="meta")
    # Only examples that require grad make the engine send gradients; tokens have none.
    taken, given = (
        torch.empty(
            (rows, settings.seq_len, module.width(inward=inward)),
            dtype=module.dtype,
            device="meta",
            requires_grad=True,
        )
        for inward in (True, False)
    )
    return PipelineStage(
        module,
        order.stage,
        order.num_stages,
        device,
        input_args=(tokens_BT if order.is_first else taken,),
        output_args=(given,),
        group=group,
    )


def schedule_for(
    stage: PipelineStage, order: StageOrder, loss: Callable[..., Tensor]
) -> Schedule1F1B | ScheduleGPipe:
    """1F1B where it can run; GPipe when asked for, or with fewer micro-batches than stages."""
    settings = order.settings
    one_f_one_b = settings.schedule == "1f1b" and settings.micro_batches >= order.num_stages
    kind = Schedule1F1B if one_f_one_b else ScheduleGPipe
    # A sum over the step's targets: micro-batches add up to the whole batch without scaling.
    return kind(stage, settings.micro_batches, loss_fn=loss, scale_grads=False)
