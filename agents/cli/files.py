"""Commands that move files: data into a bucket, a checkpoint to the leader, an adapter from it."""

from pathlib import Path

import click

from agents.cli.operation_commands import ask_from
from agents.cli.render import show
from agents.cli.session import Session, current, shared_options
from agents.cli.uploads import check_data_file
from agents.folders import Tell, add_model, export_adapter, export_merged
from transport.api.buckets import BUCKETS_ADD, MODELS_ADD, MODELS_EXPORT
from transport.api.exports import MODELS_MERGE, ExportDtype, ModelsMerge, ShownMerge
from transport.units import human_bytes


@click.command(short_help="Add a file to a bucket.")
@click.argument("bucket")
@click.argument("file")
@click.option("--name", metavar="NAME", help="Its name in the bucket; the file's own unless told.")
@click.option("--request-id", metavar="ID", help="The same id again is the same upload.")
def buckets_add(bucket: str, file: str, name: str | None, request_id: str | None) -> None:
    """Add the rows of a .jsonl, .txt, .csv, .parquet or .npy file to a bucket, streamed.

    The rows are checked before anything is stored; a wrong line is refused by its number.
    """
    session, path = current(), Path(file).expanduser()
    check_data_file(path)
    with session.client() as client:
        values = {"bucket": bucket, "name": name or path.name, "request_id": request_id}
        answer = client.upload_raw(
            BUCKETS_ADD, ask_from(session, client, BUCKETS_ADD, values), path
        )
        if session.is_json:
            session.print_raw(answer)
        else:
            show(session.console(), client.read(BUCKETS_ADD, answer))


@click.command(short_help="Add a checkpoint folder.")
@click.argument("folder")
@click.option(
    "--name", metavar="NAME", help="It becomes local:NAME; the folder's name unless told."
)
def models_add(folder: str, name: str | None) -> None:
    """Add a checkpoint folder (config.json, *.safetensors, tokenizer) to the model store."""
    session, path = current(), Path(folder).expanduser()
    with session.client() as client:
        model = name or path.resolve().name
        ask_from(session, client, MODELS_ADD, {"name": model})  # a wrong name is refused now
        added = add_model(client, path, model, _teller(session))
    if session.is_json:
        session.print_raw(added.model_dump_json().encode())
    else:
        show(session.console(), added)


@click.command(short_help="Fetch a trained adapter.")
@click.argument("job_id")
@click.option(
    "--to", "target", metavar="FOLDER", help="Write the adapter there; else only list it."
)
@click.option("--merged", is_flag=True, help="The adapter added to its base: a whole checkpoint.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Number format of a merged checkpoint; the base's own unless told.",
)
def models_export(job_id: str, target: str | None, merged: bool, dtype: ExportDtype | None) -> None:
    """Fetch the trained adapter of a finished job: a plain peft folder, its digests compared.

    With --merged a fellow adds it to its base first, and the folder is a whole checkpoint with
    tokenizer and card.
    """
    session = current()
    with session.client() as client:
        ask = ask_from(session, client, MODELS_EXPORT, {"job_id": job_id})
        if merged and target is not None:
            folder = Path(target).expanduser()
            made = _Making(session)
            wish = ModelsMerge(job_id=job_id, dtype=dtype)
            whole = export_merged(client, wish, folder, made.tell, _teller(session))
            answer = whole.model_dump_json().encode()
            session.say(f"the whole checkpoint of {job_id} is in {folder}")
        elif merged:
            answer = client.call_raw(MODELS_MERGE, ModelsMerge(job_id=job_id, dtype=dtype))
        elif target is None:
            answer = client.call_raw(MODELS_EXPORT, ask)
        else:
            folder = Path(target).expanduser()
            told = export_adapter(client, job_id, folder, _teller(session))
            answer = told.model_dump_json().encode()
            session.say(f"the adapter of {job_id} is in {folder}")
        if session.is_json:
            session.print_raw(answer)
        else:
            asked = MODELS_MERGE if merged and target is None else MODELS_EXPORT
            show(session.console(), client.read(asked, answer))


class _Making:
    """Says who makes a checkpoint, and again when that changes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._said = ""

    def tell(self, merged: ShownMerge) -> None:
        """Take the newest state."""
        words = f"waiting: {merged.reason}" if merged.state == "waiting" else ""
        words = words or f"{merged.fellow_id} merges and sends the checkpoint"
        if words != self._said:
            self._said = words
            self._session.say(words)


def _teller(session: Session) -> Tell | None:
    """One line for each file, when it begins."""
    seen: set[str] = set()
    sizes: dict[str, int] = {}

    def tell(name: str, count: int) -> None:
        sizes[name] = sizes.get(name, 0) + count
        if name not in seen:
            seen.add(name)
            session.say(f"{name} ({human_bytes(count)} …)")

    return None if session.is_quiet else tell


for _command in (buckets_add, models_add, models_export):
    _command.params += shared_options()
