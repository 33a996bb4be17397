"""The plan: what is shown, and what the stages' orders are made of; and the name that pins it.

Pure. A Plan is a strict model, so the leader stores it as JSON and reads the same plan back.
"""

import hashlib
import json
from functools import lru_cache
from typing import Annotated

from pydantic import Field

from transport.api.plans import PlanView
from transport.ids import FellowId, PlanId
from transport.orders import CardShare
from transport.schema import Model

FREE_GRAIN = 64_000_000
"""Free memory is rounded to this in a plan's name: jitter should not make a new plan of it."""

_TOLD_ONLY = {"checked_share", "waits", "findings", "untrusted_sample"}
"""What is said of the data and decides nothing."""


class PlacedStage(Model):
    """The part of a StageOrder that the planner decides."""

    stage: int
    num_stages: int
    fellow_id: FellowId
    first_layer: int
    last_layer: int
    """Inclusive."""
    num_layers: int
    """Of the whole model."""
    cards: Annotated[list[CardShare], Field(min_length=1)]
    threads: int
    """OpenMP threads of the worker."""


class Plan(Model):
    """One answer of the planner."""

    plan_id: PlanId | None
    """Set exactly when it fits."""
    view: PlanView
    stages: list[PlacedStage]
    """In pipeline order; empty when nothing was placed."""

    @property
    def fits(self) -> bool:
        """Whether it can start now."""
        return self.view.fits

    @property
    def reason(self) -> str:
        """Why it would wait; "" when it fits."""
        return self.view.reason


@lru_cache(maxsize=64)
def plan_of_text(text: str) -> Plan:
    """A stored plan. Frozen, and the same for the same text: read once."""
    return Plan.model_validate_json(text)


def name_of(view: PlanView, stages: list[PlacedStage]) -> str:
    """16 hex digits: SHA-256 over the inputs and the placement, the same on every machine."""
    assert view.model is not None
    assert view.settings is not None
    told = {
        "model": view.model.model_dump(mode="json"),
        "settings": view.settings.model_dump(mode="json"),
        "config": view.config.model_dump(mode="json"),
        "data": view.data.model_dump(mode="json", exclude=_TOLD_ONLY) if view.data else None,
        "stages": [_without_budgets(stage) for stage in stages],
        "cards": [
            {
                "card": card.card,
                "uuid": card.uuid,
                "used": card.used,
                "total": card.total_bytes,
                "free": None if card.free_bytes is None else _grain(card.free_bytes),
            }
            for card in view.cards
        ],
    }
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _grain(count: int) -> int:
    return round(count / FREE_GRAIN)


def _without_budgets(stage: PlacedStage) -> dict[str, object]:
    told: dict[str, object] = stage.model_dump(mode="json")
    told["cards"] = [
        {key: value for key, value in card.model_dump(mode="json").items() if key != "budget_bytes"}
        for card in stage.cards
    ]
    return told
