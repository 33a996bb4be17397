"""The model store in the hub's shape, against the real hub client."""

import hashlib
from pathlib import Path

import anyio.to_thread
import pytest
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from mcp_server.office import ShownModel
from tests.unit.mcp_server.twin import CREDENTIAL, House, stored

REVISION = "c0ffee" + "0" * 34
WEIGHTS = bytes(range(256)) * 5000


@pytest.fixture
def endpoint(house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The leader's hub address, with one small model in the store."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    files = {
        "config.json": stored(tmp_path / "config", b'{"model_type": "llama"}'),
        "model.safetensors": stored(tmp_path / "weights", WEIGHTS),
    }
    house.twin.models["tiny"] = ShownModel(REVISION, files)
    return f"{house.url}/fellow/v1/hub"


async def fetch(
    endpoint: str,
    cache: Path,
    name: str,
    *,
    repo_id: str = "local/tiny",
    revision: str = REVISION,
    token: str = CREDENTIAL,
) -> Path:
    """Download one file with the real client, as a stage worker does."""

    def download() -> str:
        return hf_hub_download(
            repo_id, name, revision=revision, token=token, endpoint=endpoint, cache_dir=cache
        )

    return Path(await anyio.to_thread.run_sync(download))


async def test_the_real_hub_client_downloads_a_file(endpoint: str, tmp_path: Path) -> None:
    path = await fetch(endpoint, tmp_path / "cache", "model.safetensors")
    assert path.read_bytes() == WEIGHTS
    assert path.parent.name == REVISION
    assert path.resolve().name == hashlib.sha256(WEIGHTS).hexdigest()


async def test_the_real_hub_client_goes_on_where_it_was_cut(endpoint: str, tmp_path: Path) -> None:
    blobs = tmp_path / "cache" / "models--local--tiny" / "blobs"
    blobs.mkdir(parents=True)
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    (blobs / f"{digest}.incomplete").write_bytes(WEIGHTS[:100_000])
    path = await fetch(endpoint, tmp_path / "cache", "model.safetensors")
    assert path.read_bytes() == WEIGHTS


async def test_the_real_hub_client_lists_and_takes_a_whole_model(
    endpoint: str, tmp_path: Path
) -> None:
    def whole() -> tuple[list[str], str]:
        api = HfApi(endpoint=endpoint, token=CREDENTIAL)
        info = api.model_info("local/tiny", revision=REVISION)
        folder = snapshot_download(
            "local/tiny", revision=REVISION, endpoint=endpoint, token=CREDENTIAL,
            cache_dir=tmp_path / "cache",
        )  # fmt: skip
        return sorted(one.rfilename for one in info.siblings or []), folder

    names, folder = await anyio.to_thread.run_sync(whole)
    assert names == ["config.json", "model.safetensors"]
    assert sorted(path.name for path in Path(folder).iterdir()) == names


async def test_what_is_not_there_is_told_in_the_hub_s_words(endpoint: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(EntryNotFoundError):
        await fetch(endpoint, cache, "secrets.json")
    with pytest.raises(RevisionNotFoundError):
        await fetch(endpoint, cache, "config.json", revision="d" * 40)
    with pytest.raises(RepositoryNotFoundError):
        await fetch(endpoint, cache, "config.json", repo_id="org/other")


async def test_a_stranger_downloads_nothing(endpoint: str, tmp_path: Path) -> None:
    with pytest.raises((HfHubHTTPError, LocalEntryNotFoundError)):
        await fetch(endpoint, tmp_path / "cache", "config.json", token="swt_admin")


async def test_a_name_that_climbs_out_of_the_store_finds_nothing(
    house: House, endpoint: str
) -> None:
    hostile = ("../../leader.db", "..%2F..%2Fleader.db", "/etc/passwd", "%2Fetc%2Fpasswd")
    async with house.client(CREDENTIAL) as client:
        for name in hostile:
            url = f"{endpoint}/local/tiny/resolve/{REVISION}/{name}"
            assert (await client.get(url)).status_code in (404, 405), name


async def test_head_tells_commit_digest_and_size(house: House, endpoint: str) -> None:
    async with house.client(CREDENTIAL) as client:
        told = (await client.head(f"{endpoint}/local/tiny/resolve/{REVISION}/config.json")).headers
    assert told["x-repo-commit"] == REVISION
    assert told["x-linked-size"] == told["content-length"] == "23"
    assert told["etag"] == told["x-linked-etag"]
    assert told["accept-ranges"] == "bytes"
