"""Files by range, the disk, and the leader's pinned key."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from stage_runtime import leader_files
from stage_runtime.checkpoint_share import StageSpan
from stage_runtime.download import Downloader, fetch_stage
from stage_runtime.leader_files import LeaderAccess, fetch_token_file, refuse_full_disk
from tests.oracle.grid import Ground
from tests.oracle.leader_twin import TOKEN, LeaderTwin
from tests.oracle.stages import REVISION
from transport.errors import SwarmError
from transport.orders import ModelSource

DATA = bytes(range(256)) * 40
DIGEST = hashlib.sha256(DATA).hexdigest()


def go_on() -> None:
    """Nobody asks to stop."""


@pytest.fixture
def leader(tmp_path: Path, ground: Ground) -> Iterator[LeaderTwin]:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / f"{DIGEST}.safetensors").write_bytes(DATA)
    twin = LeaderTwin(models={"local/llama": ground.model("llama")}, tokens=folder).start()
    yield twin
    twin.stop()


def access(leader: LeaderTwin) -> LeaderAccess:
    return LeaderAccess(leader.url, TOKEN, None)


def test_a_token_file_is_fetched_once_and_then_taken_from_the_cache(
    leader: LeaderTwin, tmp_path: Path
) -> None:
    for fetched in (len(DATA), 0):
        path, count = fetch_token_file(access(leader), tmp_path, DIGEST, len(DATA), go_on)
        assert (path.read_bytes(), count) == (DATA, fetched)
    assert len(leader.requests) == 1


def test_a_download_that_broke_off_goes_on_where_it_stopped(
    leader: LeaderTwin, tmp_path: Path
) -> None:
    leader.break_tokens_after = 1000
    path, _ = fetch_token_file(access(leader), tmp_path, DIGEST, len(DATA), go_on)
    assert path.read_bytes() == DATA
    assert [request.split()[-1] for request in leader.requests] == ["bytes=0-", "bytes=1000-"]


def test_a_new_worker_goes_on_with_what_a_dead_one_had(leader: LeaderTwin, tmp_path: Path) -> None:
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / f"{DIGEST}.999999999.part").write_bytes(DATA[:5000])
    _, count = fetch_token_file(access(leader), tmp_path, DIGEST, len(DATA), go_on)
    assert count == len(DATA) - 5000


def test_bytes_that_do_not_have_the_digest_are_not_taken(
    leader: LeaderTwin, tmp_path: Path
) -> None:
    (leader.tokens / f"{DIGEST}.safetensors").write_bytes(DATA[:-1] + b"x")
    with pytest.raises(SwarmError, match="damaged"):
        fetch_token_file(access(leader), tmp_path, DIGEST, len(DATA), go_on)
    assert not list((tmp_path / "tokens").glob("*"))


def test_without_a_leader_a_missing_token_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(SwarmError) as refusal:
        fetch_token_file(LeaderAccess("", "", None), tmp_path, DIGEST, 5, go_on)
    assert refusal.value.code == "not-found"


def test_a_leader_that_is_away_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(SwarmError) as refusal:
        fetch_token_file(LeaderAccess("http://127.0.0.1:9", "", None), tmp_path, DIGEST, 5, go_on)
    assert refusal.value.code == "unreachable"


def test_a_download_beyond_the_disk_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(SwarmError) as refusal:
        refuse_full_disk(tmp_path, 10**18, "the model")
    assert refusal.value.code == "not-enough-disk"
    assert "1e+09 GB" in refusal.value.message or "GB" in refusal.value.message
    assert refusal.value.facts["needed_bytes"] == 10**18


def source(name: str = "llama", revision: str = REVISION) -> ModelSource:
    return ModelSource(
        model_id=f"local:{name}", repository=f"local/{name}", revision=revision, from_leader=True
    )


def test_a_stage_downloads_the_files_of_its_layers_and_no_others(
    leader: LeaderTwin, tmp_path: Path
) -> None:
    span = StageSpan(2, 2, False, False)
    checkpoint, count = fetch_stage(source(), span, access(leader), tmp_path, go_on)
    there = {path.name for path in checkpoint.folder.glob("*.safetensors")}
    needed = {f for f, names in checkpoint.files.items() if any(".layers.2." in n for n in names)}
    assert there == needed
    assert count == sum((checkpoint.folder / name).stat().st_size for name in there)
    assert fetch_stage(source(), span, access(leader), tmp_path, go_on)[1] == 0


def test_a_disk_too_small_for_the_share_stops_before_any_weight_and_counts_what_is_cached(
    leader: LeaderTwin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    span, spare = StageSpan(2, 2, False, False), leader_files.SPARE_DISK_BYTES
    monkeypatch.setattr(leader_files, "SPARE_DISK_BYTES", 1 << 60)
    with pytest.raises(SwarmError, match="this stage's share of the model needs") as refusal:
        fetch_stage(source(), span, access(leader), tmp_path, go_on)
    assert refusal.value.code == "not-enough-disk"
    assert not list(tmp_path.rglob("hub/**/*.safetensors"))

    monkeypatch.setattr(leader_files, "SPARE_DISK_BYTES", spare)
    _, share = fetch_stage(source(), span, access(leader), tmp_path, go_on)
    assert refusal.value.facts["needed_bytes"] == share > 0

    monkeypatch.setattr(leader_files, "SPARE_DISK_BYTES", 1 << 60)
    assert fetch_stage(source(), span, access(leader), tmp_path, go_on)[1] == 0


@pytest.mark.parametrize("wrong", [source("absent"), source(revision="f" * 40)])
def test_a_model_that_the_leader_does_not_have_is_not_found(
    leader: LeaderTwin, tmp_path: Path, wrong: ModelSource
) -> None:
    with pytest.raises(SwarmError) as refusal:
        fetch_stage(wrong, StageSpan(0, 5, True, True), access(leader), tmp_path, go_on)
    assert refusal.value.code == "not-found"


def test_nothing_is_fetched_without_a_leader(tmp_path: Path) -> None:
    nowhere = LeaderAccess("", "", None)
    with pytest.raises(SwarmError) as refusal:
        fetch_stage(source(), StageSpan(0, 5, True, True), nowhere, tmp_path, go_on)
    assert refusal.value.code == "not-found"


def test_the_hub_never_gets_the_fellows_credential(tmp_path: Path) -> None:
    hub = ModelSource(model_id="a/b", repository="a/b", revision=REVISION, from_leader=False)
    downloader = Downloader(hub, LeaderAccess("http://x", TOKEN, None), tmp_path, go_on)
    assert downloader._token is None
    assert downloader._endpoint is None
