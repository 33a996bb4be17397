"""Documents kept apart: asked for, priced, and refused where a family cannot."""

import pytest

from control.planning.documents import refuse
from control.planning.place import place
from stage_runtime.model_facts import facts_from_config
from tests.oracle.memory_models import MODELS
from tests.unit.control.planning.pools import a_fellow, a_job, a_model
from transport.errors import SwarmError
from transport.orders import TrainSettings

ABLE = ["stage", "lora", "document-mask"]


def test_a_mask_between_documents_is_in_the_settings_and_in_the_price() -> None:
    fellows = [a_fellow(letter, features=ABLE) for letter in "ab"]
    asked = {"train__batch_size": 8, "train__seq_len": 1024, "train__micro_batches": 2}
    without, apart = (
        place(a_model(), a_job(**asked, train__document_mask=masks), fellows)
        for masks in (False, True)
    )
    assert isinstance(without.view.settings, TrainSettings)
    assert isinstance(apart.view.settings, TrainSettings)
    assert not without.view.settings.document_mask
    assert apart.view.settings.document_mask
    assert apart.stages[0].cards[0].planned_bytes > without.stages[0].cards[0].planned_bytes


def test_a_family_whose_class_makes_no_such_mask_is_refused() -> None:
    facts = facts_from_config(MODELS["gpt-oss-20b"])
    with pytest.raises(SwarmError, match=r"train\.document_mask: a gpt_oss model") as refusal:
        refuse(a_job(train__document_mask=True), facts)
    assert refusal.value.code == "invalid-input"
    refuse(a_job(), facts)
    refuse(a_job(train__document_mask=True), facts_from_config(MODELS["llama-3.1-8b"]))


def test_a_fellow_that_cannot_keep_documents_apart_is_left_out_by_name() -> None:
    fellows = [a_fellow("a", features=ABLE), a_fellow("b", features=ABLE[:2])]
    plan = place(a_model(), a_job(train__batch_size=1, train__document_mask=True), fellows)
    assert len(plan.stages) == 1
    (reason,) = [card.reason for card in plan.view.cards if not card.used]
    assert "document-mask" in reason
