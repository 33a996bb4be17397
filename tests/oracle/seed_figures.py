"""Figures that are told of real pools beside ours: `python -m tests.oracle.seed_figures`.

Every figure comes from an inventory on paper, through the planner as a user's would. Where ours is
another, the last column says why. Ends with 1 when one is not where the checks of
tests/unit/control/planning/test_seed_figures.py say it is.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from control.planning.maximize import maximized
from control.planning.place import Inputs
from control.planning.plan import Plan
from stage_runtime.costs import Prices
from stage_runtime.places import CardPlace, Device
from tests.unit.control.planning.papers import (
    NEMOTRON,
    QWEN_14B,
    a_model_job,
    machine,
    on_paper,
    three_cards,
)
from transport.units import GB


@dataclass(frozen=True)
class Figure:
    """One figure."""

    what: str
    told: str
    ours: str
    holds: bool
    """Ours is the told one, or differs as the reason says."""
    why: str = ""


def weights_gb(quantization: str) -> float:
    """All weights of a 14B model of 48 layers on one card, tables included."""
    inputs = on_paper(NEMOTRON, machine("a", "H100 80GB"))
    job = a_model_job(NEMOTRON, {"nf4": 4}.get(quantization, "none"), train__batch_size=1)
    settings = inputs.place(job).view.settings
    assert settings is not None
    assert settings.quantization == quantization
    facts = inputs.model.facts
    place = CardPlace(0, 1, 0, facts.num_layers - 1)
    price = Prices(facts, settings).of(place, Device("cuda"))
    return (price.weights + price.embeddings) / GB


def small_cards() -> Inputs:
    """Qwen3-14B on two cards of 4 GB and two of 6 GB."""
    four, six = {"card": "GTX 1650", "count": 2}, {"card": "GTX 1660 SUPER", "count": 2}
    return on_paper(QWEN_14B, machine("a", four), machine("b", six))


def layers_of(plan: Plan) -> list[int]:
    """Of each stage."""
    return [stage.last_layer - stage.first_layer + 1 for stage in plan.stages]


def step_s(pool: Inputs, **more: object) -> float:
    """The predicted step of 384 tokens on three cards."""
    job = a_model_job(NEMOTRON, 4, train__seq_len=384, train__batch_size=1, **more)
    found = pool.place(job).view.layout.step_s
    assert found is not None
    return found


def batches_of(seq_len: int) -> int | None:
    """Whole batches of one sequence in 882,300 tokens."""
    inputs = on_paper("Qwen/Qwen3-0.6B", machine("a", "RTX 4090"), seq_len=seq_len, tokens=882_300)
    job = a_model_job("Qwen/Qwen3-0.6B", train__seq_len=seq_len, train__batch_size=1)
    data = inputs.place(job).view.data
    return None if data is None else data.batches


def figures() -> Iterator[Figure]:
    """All of them."""
    yield from _weights()
    plan = small_cards().place(a_model_job(QWEN_14B))
    yield Figure("Qwen3-14B trains on 2 x 4 GB + 2 x 6 GB", "in 4 bits",
                 plan.view.settings.quantization if plan.view.settings else plan.reason,
                 plan.fits)  # fmt: skip
    yield from _splits()
    yield from _lengths()
    pair = on_paper("Qwen/Qwen3-0.6B", machine("a", "GTX 1050 Ti"), machine("b", "GTX 1660 SUPER"))
    settings = pair.place(a_model_job("Qwen/Qwen3-0.6B")).view.settings
    dtype = settings.dtype if settings else "does not fit"
    yield Figure("GTX 1050 Ti beside GTX 1660 SUPER: format", "float32", dtype, dtype == "float32")
    for seq_len, batches in ((4096, 215), (512, 1723)):
        ours = batches_of(seq_len)
        yield Figure(f"882,300 tokens in batches of {seq_len:,}", f"{batches:,}",
                     f"{ours or 0:,}", ours == batches)  # fmt: skip
    yield from _recompute()


def _recompute() -> Iterator[Figure]:
    for method, least, most in (("lora", 0.45, 0.5), ("full", 0.3, 0.34)):
        more = recompute_costs(method)
        why = "frozen weights have no gradient of their own: 3 passes for 2, not 4 for 3"
        yield Figure(f"recompute, {method}: a step longer by", "a third", f"{100 * more:.0f} %",
                     least <= more <= most, why * (method == "lora"))  # fmt: skip


def recompute_costs(method: str) -> float:
    """The share by which recompute makes a step longer; a head is not computed again."""
    pool = on_paper(NEMOTRON, machine("a", {"card": "H200", "count": 3}))
    steps = []
    for recompute in (False, True):
        job = a_model_job(NEMOTRON, "none", method=method, train__recompute=recompute,
                          train__batch_size=1)  # fmt: skip
        found = pool.place(job).view.layout.step_s
        assert found is not None
        steps.append(found)
    return steps[1] / steps[0] - 1


def _weights() -> Iterator[Figure]:
    half, four = weights_gb("none"), weights_gb("nf4")
    yield Figure("14B in half precision", "about 30 GB", f"{half:.1f} GB", abs(half - 30) < 0.9)
    table = 1.56
    yield Figure("14B in 4 bits", "about 8 GB", f"{four - table:.1f} + {table} GB",
                 abs(four - table - 8) < 1,
                 "embeddings and head are 16-bit, and two tables here")  # fmt: skip


def _splits() -> Iterator[Figure]:
    pool = three_cards(5.8, 12.4)
    plan = pool.place(a_model_job(NEMOTRON, 4, train__seq_len=384, train__batch_size=1))
    (chosen,) = [one for one in plan.view.chosen if one.setting == "split"]
    memory = chosen.reason.partition("(")[2].partition(" by free")[0]
    yield Figure(
        "48 layers, 2 x GTX 1660 SUPER, A4000: by memory", "20 + 28", memory, memory == "20 + 28"
    )
    counts = layers_of(plan)
    yield Figure("... by speed", "8 + 40", " + ".join(map(str, counts)), counts == [8, 40])
    shorter = 1 - step_s(pool, layer_index=[8]) / step_s(pool, layer_index=[20])
    yield Figure(
        "... a step shorter by", "40 to 48 %", f"{100 * shorter:.0f} %", 0.40 <= shorter <= 0.48
    )
    told = three_cards(5.3, 14.9).place(
        a_model_job(NEMOTRON, 4, train__seq_len=512, train__batch_size=1)
    )
    (chosen,) = [one for one in told.view.chosen if one.setting == "split"]
    memory = chosen.reason.partition("(")[2].partition(" by free")[0]
    why = "each card also pays its context, each end its table: two small cards feel it more"
    yield Figure(
        "... by memory with 10.6 and 14.9 GB free", "20 + 28", memory, memory == "16 + 32", why
    )


def _lengths() -> Iterator[Figure]:
    job = a_model_job(NEMOTRON, 4)
    found = [
        maximized(three_cards(*free), job).train.seq_len for free in ((4.7, 13.5), (5.3, 14.9))
    ]
    yield Figure("14B in 4 bits on three cards, tokens", "2,048 to 6,144",
                 f"{found[0]:,} to {found[1]:,}", found[0] >= 2048 and found[1] >= 6144,
                 "lean adapters and loss, all free memory, better order, full cards")  # fmt: skip
    old = maximized(three_cards(version="0.0.9"), job).train.seq_len
    yield Figure("... without the three savings", "about 512", f"{old:,}", 350 <= old <= 800)
    longest = three_cards().place(a_model_job(NEMOTRON, 4, train__seq_len=65_536))
    yield Figure("... 65,536 tokens", "do not fit", "fit" if longest.fits else "do not fit",
                 not longest.fits)  # fmt: skip


def main() -> int:
    """Print the table."""
    missed = 0
    print(f"{'what':48s} {'told':15s} {'ours':34s} why ours differs")
    for one in figures():
        missed += not one.holds
        mark = "" if one.holds else "MISSED  "
        print(f"{one.what:48s} {one.told:15s} {one.ours:34s} {mark}{one.why}")
    print("all hold" if not missed else f"{missed} MISSED")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
