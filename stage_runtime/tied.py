"""An embedding that is the output head as well, in a full fine-tune over several stages.

The first stage owns the table: it alone has its moments and its master copy, counts it in the
norm, and saves it. The last stage holds a copy for the loss. Each step the copy's gradient travels
from stage to stage back to the owner, is added there before norm and clip, and after the update
the new values travel the same way forward: both copies are the same bits, whatever the cards.
There is no link between the two ends, so the stages between pass the pieces on.
"""

# V = vocabulary, D = hidden width; a piece is PIECE_VALUES float32 values of the flat (V x D) table

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stage_runtime.load import LoadedStage
from stage_runtime.process_group import TensorKind
from stage_runtime.tied_costs import piece_values, shares_table
from transport.orders import StageOrder


def tied_kinds(stage: LoadedStage, order: StageOrder) -> list[TensorKind]:
    """What crosses this stage's boundaries besides hidden states: one piece of the table."""
    if not shares_table(stage.facts, order.settings, order.num_stages):
        return []
    return [TensorKind(torch.float32, (piece_values(stage.facts),))]


@dataclass(frozen=True)
class TiedTable:
    """This stage's part in keeping two copies of one table alike.

    Both methods must be called by every stage at the same place of a step.
    """

    group: dist.ProcessGroup
    stage: int
    num_stages: int
    size: int
    """Values of the table."""
    piece: int
    weight: nn.Parameter | None
    """The embedding on the first stage, the head on the last one, None between."""

    def gather(self) -> None:
        """Bring the head's gradient to the first stage and add it there; the last one drops it."""
        buffer = torch.zeros(self.piece, dtype=torch.float32)
        for part in self._parts():
            if not self._is_last:
                self._receive(buffer, self.stage + 1)
            if self.stage > 0:
                if self._is_last:
                    self._fill(buffer, self._gradient(), part)
                self._send(buffer, self.stage - 1)
            else:
                gradient = self._gradient()
                gradient[part] += buffer[: part.stop - part.start].to(gradient.device)
        if self._is_last and self.weight is not None:
            self.weight.grad = None

    def spread(self) -> None:
        """Bring the first stage's values to the last one."""
        buffer = torch.zeros(self.piece, dtype=torch.float32)
        for part in self._parts():
            if self.stage == 0:
                self._fill(buffer, self._values(), part)
            else:
                self._receive(buffer, self.stage - 1)
            if not self._is_last:
                self._send(buffer, self.stage + 1)
            else:
                self._values()[part].copy_(buffer[: part.stop - part.start])

    @property
    def _is_last(self) -> bool:
        return self.stage == self.num_stages - 1

    def _parts(self) -> Iterator[slice]:
        for start in range(0, self.size, self.piece):
            yield slice(start, min(self.size, start + self.piece))

    def _values(self) -> Tensor:
        assert self.weight is not None
        return self.weight.detach().view(-1)

    def _gradient(self) -> Tensor:
        assert self.weight is not None
        if self.weight.grad is None:
            self.weight.grad = torch.zeros_like(self.weight)
        return self.weight.grad.view(-1)

    @staticmethod
    def _fill(buffer: Tensor, values: Tensor, part: slice) -> None:
        buffer[: part.stop - part.start].copy_(values[part])

    def _send(self, buffer: Tensor, stage: int) -> None:
        self.group.send([buffer], stage, 0).wait()

    def _receive(self, buffer: Tensor, stage: int) -> None:
        self.group.recv([buffer], stage, 0).wait()


def tied_table(stage: LoadedStage, order: StageOrder, group: dist.ProcessGroup) -> TiedTable | None:
    """The stage's part; None when nothing is shared between stages."""
    if not shares_table(stage.facts, order.settings, order.num_stages):
        return None
    weight: nn.Parameter | None = None
    if order.is_first:
        weight = stage.body.get_input_embeddings().weight  # type: ignore[operator]
    elif stage.head is not None:
        weight = stage.head.weight
    size = stage.facts.vocab * stage.facts.hidden
    return TiedTable(group, order.stage, order.num_stages, size, piece_values(stage.facts), weight)
