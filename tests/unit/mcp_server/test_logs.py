"""Log lines: JSON, one a line, without any secret."""

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.logs import JsonLines, redact
from tests.unit.mcp_server.twin import CREDENTIAL, INVITE, House, sample
from transport.reports import JoinAsk

TAIL = st.text("abcXYZ019_-", min_size=8, max_size=60)


def written(record: logging.LogRecord) -> str:
    """The record as the log shows it."""
    return JsonLines().format(record)


@given(
    st.sampled_from(["swm_", "swn_", "swi_", "swt_", "hf_"]), TAIL, st.text(" \"'=:/(", max_size=3)
)
def test_no_secret_is_left_wherever_it_stands(prefix: str, tail: str, before: str) -> None:
    told = redact(f"x{before or ' '}{prefix}{tail} y")
    assert tail not in told
    assert prefix in told


@pytest.mark.parametrize(
    "text",
    ["Authorization: Bearer abcdefghijk", "GET /signin?code=Abcdefgh12345", "bearer  zzzzzzzzzz",
     "cookie: swarm_session=QWJjZGVm.Z2hpamts", "__Host-swarm=QWJjZGVm.Z2hpamts"],
)  # fmt: skip
def test_what_follows_a_telling_word_is_taken_out(text: str) -> None:
    assert redact(text).endswith("…")


def test_a_record_is_one_json_line_with_its_extra_fields() -> None:
    record = logging.makeLogRecord(
        {"name": "a", "levelname": "INFO", "msg": "did %s\n", "args": ("x",), "job": "j-1"}
    )
    line = written(record)
    assert "\n" not in line
    told = json.loads(line)
    assert (told["message"], told["job"], told["level"]) == ("did x\n", "j-1", "info")


def test_a_traceback_is_cleaned_too() -> None:
    try:
        raise RuntimeError(f"could not send {CREDENTIAL}")
    except RuntimeError as failure:
        info = (type(failure), failure, failure.__traceback__)
    line = written(logging.makeLogRecord({"msg": "failed", "exc_info": info}))
    assert CREDENTIAL not in line
    assert "could not send swn_…" in json.loads(line)["traceback"]


async def test_a_day_at_the_doors_leaves_no_secret_in_the_log(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    level = root.level
    _let_everyone_speak(monkeypatch)
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        secrets = await _a_day(house)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    text = log.getvalue()
    assert len(text.splitlines()) >= 10
    assert "broke on" in text
    assert [secret for secret in secrets if secret in text] == []


def _let_everyone_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever tests before this one have told the libraries' loggers."""
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            monkeypatch.setattr(logger, "disabled", False)
            monkeypatch.setattr(logger, "propagate", True)
            monkeypatch.setattr(logger, "level", logging.NOTSET)


async def _a_day(house: House) -> list[str]:
    wrong = "swm_" + "w" * 40
    async with house.client("swt_admin") as client:
        link = (await client.post("/signin")).json()["url"]
        house.twin.failure = RuntimeError(f"broke on {INVITE} and {CREDENTIAL}")
        await client.get("/api/v1/pools")
    async with house.client() as browser:
        cookie = (await browser.get(link)).headers["set-cookie"].partition(";")[0]
    for headers in ({"cookie": cookie}, {"authorization": f"Bearer {wrong}"}):
        async with house.client(**headers) as client:
            await client.get("/api/v1/jobs")
            await client.post("/mcp", json={})
    async with house.client(CREDENTIAL) as client:
        await client.get("/fellow/v1/orders?since=0")
        await client.post("/fellow/v1/join", json=sample(JoinAsk, protocol=1, invite=INVITE))
    return [wrong, INVITE, CREDENTIAL, link.partition("code=")[2], cookie.partition("=")[2]]
