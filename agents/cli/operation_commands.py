"""Commands made from the declared operations: their words, arguments, help and answers.

Knows how a field of an input model becomes an option. Does not know any single operation.
"""

import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agents.cli.jobfile import read_job_file
from agents.cli.render import show
from agents.cli.session import Session, current, shared_options
from agents.cli.subcommands import Words, load_own
from agents.cli.words import INSIDE
from agents.client import Client
from transport.api.catalog import OPERATIONS
from transport.api.operation import Ask, Operation
from transport.api.pools import POOLS_LIST, PoolsList
from transport.errors import SwarmError
from transport.schema import parse


def command_of(word: str, says: str) -> click.Command:
    """The command, or group of commands, below a first word."""
    found = {op.words[1:]: op for op in OPERATIONS.values() if op.words[0] == word}
    if () in found:
        return _command(found[()], word)

    def load(name: str) -> click.Command | None:
        if (word, name) in INSIDE:
            return load_own(INSIDE[word, name])
        operation = found.get((name,))
        return None if operation is None else _command(operation, name)

    rows = {words[0]: _first_sentence(op.doc) for words, op in found.items()}
    rows |= {name: own.says for (first, name), own in INSIDE.items() if first == word}
    return Words(word, says, rows, load)


def _command(operation: Operation, name: str) -> click.Command:
    # A pool is named by the shared --pool, unless the operation is about the pool itself.
    own = [
        _parameter(key, field, operation)
        for key, field in operation.asks.model_fields.items()
        if key != "pool" or key in operation.positional
    ]

    def call(**values: Any) -> None:
        session = current()
        if operation.effect == "destroy":
            named = ", ".join(str(values[key]) for key in operation.positional)
            session.confirm(f"{' '.join(operation.words)} {named}?")
        with session.client() as client:
            answer = client.call_raw(operation, ask_from(session, client, operation, values))
            if session.is_json:
                session.print_raw(answer)
            else:
                show(session.console(), client.read(operation, answer))

    return click.Command(
        name,
        callback=call,
        help=operation.doc,
        short_help=_first_sentence(operation.doc),
        params=[*own, *shared_options()],
    )


def ask_from(
    session: Session, client: Client, operation: Operation, values: Mapping[str, Any]
) -> Ask:
    """The operation's input from what the command line gave.

    Raises:
        SwarmError: invalid-input, naming each wrong argument.
    """
    fields = operation.asks.model_fields
    given = {
        key: _json_value(value, fields[key].annotation)
        for key, value in values.items()
        if value not in (None, (), False)
    }
    if "pool" in fields and "pool" not in given:
        pool = session.profile().pool.value
        if pool is None and fields["pool"].is_required():
            pool = only_pool(client)
        if pool is not None:
            given["pool"] = pool
    return parse(operation.asks, given)


def only_pool(client: Client) -> str:
    """The pool that needs no naming, because there is no other.

    Raises:
        SwarmError: invalid-input when there are several, not-found when there is none.
    """
    pools = [row.pool for row in client.call(POOLS_LIST, PoolsList()).pools]
    if len(pools) == 1:
        return pools[0]
    if not pools:
        raise SwarmError(
            "not-found", "there is no pool yet", hint="make one: `swarm pools create OWNER/NAME`"
        )
    raise SwarmError(
        "invalid-input",
        f"there are {len(pools)} pools: {', '.join(pools[:5])}",
        hint="name one with --pool or SWARM_POOL",
    )


def _parameter(name: str, field: FieldInfo, operation: Operation) -> click.Parameter:
    """The option or argument of one field."""
    if name in operation.positional:
        return click.Argument([name], required=field.is_required())
    kind = _plain(field.annotation)
    flag, text = f"--{name.replace('_', '-')}", (field.description or "").replace("\n", " ")
    if kind is bool:
        return click.Option([flag, name], is_flag=True, help=text)
    if get_origin(kind) is Literal:
        return click.Option([flag, name], type=click.Choice(get_args(kind)), help=text)
    if get_origin(kind) is list:
        return click.Option([flag, name], multiple=True, help=text + " May be repeated.")
    if _is_document(kind):
        return click.Option([flag, name], metavar="FILE|-", help=text or "JSON or YAML.")
    metavar = {int: "N", float: "X"}.get(kind, "TEXT") if isinstance(kind, type) else "TEXT"
    return click.Option([flag, name], metavar=metavar, help=text)


def _json_value(value: Any, annotation: Any) -> Any:
    """What a word of the command line means; a wrong one stays as it is, to be refused by name."""
    kind = _plain(annotation)
    if _is_document(kind):
        return read_job_file(str(value)).values
    if isinstance(value, tuple):
        return list(value)
    if kind in (int, float) and isinstance(value, str):
        try:
            return int(value) if kind is int else float(value)
        except ValueError:
            return value
    return value


def _is_document(kind: Any) -> bool:
    """Whether a field is a whole document, given as a file."""
    return get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, BaseModel))


def _plain(annotation: Any) -> Any:
    """A field's type without Annotated and without None."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [one for one in get_args(annotation) if one is not type(None)]
        return _plain(rest[0])
    return annotation


def _first_sentence(doc: str) -> str:
    return " ".join(doc.split("\n\n", maxsplit=1)[0].split()).partition(". ")[0].rstrip(".") + "."
