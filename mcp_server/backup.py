"""`backup FILE` and `restore FILE` of mcp_server.main: a stopped leader's data in one file."""

import argparse
from pathlib import Path

from control.settings import load
from control.store.backup import FOLDERS, MODELS, backup_stopped, restore
from control.store.files import only_leader

WORDS = ("backup", "restore")


def run(argv: list[str]) -> int:
    """Back up or restore. Returns the exit code.

    Raises:
        SwarmError: conflict when a leader runs in that folder or the file is there already.
    """
    told = _parser().parse_args(argv)
    data = load({"data": told.data}).settings.data
    file = told.file.absolute()
    if told.word == "restore":
        restore(file, data)
        return 0
    with only_leader(data):
        backup_stopped(data, file, (*FOLDERS, MODELS) if told.models else FOLDERS)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("swarm leader", description="Back up or restore a leader.")
    parser.add_argument("word", choices=WORDS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", type=Path, help="the leader's data folder")
    parser.add_argument("--models", action="store_true", help="with the model store's checkpoints")
    return parser
