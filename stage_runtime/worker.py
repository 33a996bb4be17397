"""The stage worker: `python -m stage_runtime.worker`, one process for one stage of one attempt.

Reads the daemon's lines, binds its socket, loads, trains, brings the result to the leader, and
says how it ended. A thread of its own reads the channel, so that a pause is heard while the stage
computes and the end of the channel ends the process at once.
"""

import logging
import os
import queue
import shutil
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from huggingface_hub.utils.tqdm import disable_progress_bars
from transformers.utils import logging as transformers_logging

from stage_runtime.boundaries import crossed
from stage_runtime.card_memory import cannot_fit
from stage_runtime.causes import Paused, find_cause
from stage_runtime.channel import Channel, ReportedLog
from stage_runtime.checkpoint import Checkpoint
from stage_runtime.documents import fetch_document_starts
from stage_runtime.download import fetch_stage
from stage_runtime.frame_limit import largest_frame
from stage_runtime.leader_files import LeaderAccess, fetch_token_file
from stage_runtime.link_paths import PathTeller
from stage_runtime.moving import Moving
from stage_runtime.process_group import SwarmGroup, make_group
from stage_runtime.result import SavedFile, upload
from stage_runtime.snapshot import SavePlace, fetch_saved
from stage_runtime.stage_group import LauncherGroup, StageGroup
from stage_runtime.stopping import Told
from stage_runtime.train import LoadedRun, crossing_kinds, load, span_of, train
from transport.direct import LinkOptions, PipelineLinks
from transport.errors import SwarmError
from transport.link import LinkFailed, LinkName
from transport.orders import Links, StageOrder, WorkerLinks, WorkerPause, WorkerStart
from transport.reports import AdapterSaved, StageBound, StageDone, StageFailed
from transport.units import human_bytes

log = logging.getLogger("stage_runtime")

EXIT_DONE, EXIT_FAILED, EXIT_PAUSED, EXIT_ORPHANED = 0, 3, 4, 5
PASSING = ("unreachable", "unavailable", "rate-limited")
"""Codes of trouble that is no fault of the job: its stage may be started again."""
OTHERS_LOAD_S = 6 * 3600.0
"""How long a loaded stage waits for the others to download and load. The leader ends it earlier."""
PAUSE_GRACE_S = 3.0
"""A paused stage that has not ended by itself ends here."""
LET_NEIGHBOURS_HEAR_S = 0.3
"""The links stay open this long after this stage has told its neighbours why it stops."""


@dataclass
class Control:
    """What the daemon wants, as heard by the reading thread."""

    links: "queue.SimpleQueue[Links | None]" = field(default_factory=queue.SimpleQueue)
    reason: str | None = None
    told: Told | None = None
    """When, and in the middle of what."""
    group: StageGroup | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def pause(self, reason: str) -> None:
        """Stop the stage, whatever it does."""
        with self.lock:
            self.reason = self.reason or reason
            group = self.group
            self.told = self.told or Told.now(group)
        # A kernel, a download or an upload that does not look up must not hold the pause.
        last_resort = threading.Timer(PAUSE_GRACE_S, os._exit, [EXIT_PAUSED])
        last_resort.daemon = True
        last_resort.start()
        self.links.put(None)
        if group is not None:
            group.fail(Paused(reason))

    def adopt(self, group: StageGroup) -> None:
        """A pause reaches this group from now on."""
        with self.lock:
            self.group = group
            reason = self.reason
        if reason is not None:
            group.fail(Paused(reason))

    def check(self) -> None:
        """Raise when the daemon has asked to stop."""
        if self.reason is not None:
            raise Paused(self.reason)

    def wait_for_links(self, timeout_s: float) -> Links:
        """The neighbours' addresses, once all stages have bound.

        Raises:
            SwarmError: paused, or stage-failed when they do not come in time.
        """
        try:
            links = self.links.get(timeout=timeout_s)
        except queue.Empty:
            raise SwarmError(
                "stage-failed",
                f"the other stages did not start within {timeout_s:.0f} s",
                hint="see the fellows of the other stages",
            ) from None
        self.check()
        assert links is not None
        return links


def run_worker(channel: Channel) -> int:
    """Run one stage from its first line to its end; returns the exit code."""
    lines = channel.lines()
    try:
        start = next(lines, None)
    except SwarmError as error:
        # No order, so no report could name its stage: stderr is all there is.
        sys.stderr.write(f"{error.message}\n")
        return EXIT_ORPHANED
    if not isinstance(start, WorkerStart):
        return EXIT_ORPHANED
    channel.speak_for(start.order)
    _prepare_process(channel, start.order)
    control = Control()
    threading.Thread(target=_listen, args=(lines, control), daemon=True).start()
    worker = _Worker(start, channel, control)
    try:
        worker.run()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the daemon must hear of it
        return worker.end(error)
    return EXIT_DONE


def _listen(lines: Any, control: Control) -> None:
    """The reading thread: lives until the daemon is gone, and then ends the process."""
    try:
        for line in lines:
            if isinstance(line, WorkerLinks):
                control.links.put(line.links)
            elif isinstance(line, WorkerPause):
                control.pause(line.reason)
    except SwarmError as error:
        log.error("%s", error.message)
    os._exit(EXIT_ORPHANED)


def _prepare_process(channel: Channel, order: StageOrder) -> None:
    torch.set_num_threads(order.threads)
    logging.captureWarnings(capture=True)
    root = logging.getLogger()
    root.handlers[:] = [ReportedLog(channel)]
    root.setLevel(logging.WARNING)
    logging.getLogger("stage_runtime").setLevel(logging.INFO)
    for library in ("bitsandbytes", "httpx2", "httpcore2", "huggingface_hub"):
        logging.getLogger(library).setLevel(logging.ERROR)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    disable_progress_bars()


class _Worker:
    """The stage's way through its phases, and what must be closed at the end."""

    def __init__(self, start: WorkerStart, channel: Channel, control: Control) -> None:
        self.start = start
        self.order = start.order
        self.channel = channel
        self.control = control
        self.leader = LeaderAccess(start.leader_url, start.leader_token, start.leader_pin)
        self.links: PipelineLinks | None = None
        self._paths = PathTeller(channel)
        self.group: StageGroup | None = None
        self._moving: Moving | None = None

    def run(self) -> None:
        """Bind, load, connect, train, save."""
        work = Path(self.start.work_folder)
        _empty(work)
        self._bind()
        checkpoint, token_file, fetched = self._fetch()
        resumed = fetch_saved(self.leader, self.order, work, self.control.check)
        place = SavePlace(self.leader, work / "snapshots", resumed)
        self.control.check()
        loaded = load(self.order, checkpoint, token_file, self.channel.report, fetched)
        self.control.check()
        self.group = self._connect(loaded)
        self.control.adopt(self.group)
        if isinstance(self.group, SwarmGroup):
            self._moving = Moving(self.channel, self.group)
        self.group.begin_step(0)
        log.info("ready; waiting until every stage is")
        self.group.exchange([0.0], timeout_s=OTHERS_LOAD_S)
        saved = train(loaded, self.group, self.channel.report, work, place)
        if self._moving is not None:
            self._moving.stop()
        # Nobody needs a neighbour any more; a file that is long on its way must not hold links.
        self.group.close()
        self._bring(saved)

    def _bind(self) -> None:
        order = self.order
        if order.settings.backend != "swarm":
            return
        name = LinkName(order.job_id, order.attempt, order.stage, order.stage)
        start = self.start
        options = LinkOptions(
            more_addresses=start.more_addresses,
            listen_port=start.listen_port,
            announced=start.announced,
            on_path=self._paths.tell,
        )
        self.links = PipelineLinks.open(name, order.num_stages, start.listen_address, options)
        endpoint = self.links.endpoint
        self.channel.report(
            StageBound, public_key=endpoint.public_key, endpoints=list(endpoint.endpoints)
        )

    def _fetch(self) -> tuple[Checkpoint, Path | None, int]:
        order, cache, check = self.order, Path(self.start.cache_folder), self.control.check
        token_file, tokens_fetched = None, 0
        if order.is_first or order.is_last:
            token_file, tokens_fetched = fetch_token_file(
                self.leader, cache, order.tokens.digest, order.tokens.size_bytes, check
            )
        elif order.settings.document_mask:
            token_file, tokens_fetched = fetch_document_starts(
                self.leader, cache, order.tokens, check
            )
        checkpoint, fetched = fetch_stage(order.model, span_of(order), self.leader, cache, check)
        whole = fetched + tokens_fetched
        log.info("fetched %s; the rest was in the cache", human_bytes(whole))
        return checkpoint, token_file, whole

    def _connect(self, loaded: LoadedRun) -> StageGroup:
        if self.links is None:
            return LauncherGroup(self.order)
        kinds = crossing_kinds(loaded)
        if self.order.num_stages > 1:
            links = self.control.wait_for_links(self.order.settings.link_timeout_s)
            host = urlsplit(self.start.leader_url).hostname or ""
            limit = largest_frame(kinds, self.order.settings.compression.kind)
            self.links.connect(links, host, limit)
        return make_group(self.order, self.links, kinds)

    def _bring(self, saved: SavedFile) -> None:
        if self.leader.url:
            upload(self.leader, self.order, saved, self.control.check)
            log.info("the result (%s) is at the leader", human_bytes(saved.size_bytes))
        self.channel.report(AdapterSaved, digest=saved.digest, size_bytes=saved.size_bytes)
        assert self.group is not None
        self.channel.report(
            StageDone,
            sent_bytes=self.group.sent_bytes,
            received_bytes=self.group.received_bytes,
            crossed=crossed(self.order, self.group),
        )

    def end(self, error: BaseException) -> int:
        """Tell the neighbours and the daemon why this stage ends; returns the exit code."""
        told = failure_of(error)
        if isinstance(told, Paused) and self.control.told is not None:
            log.info("%s", self.control.told.words(self.group))
        if self.group is not None:
            self._tell_neighbours(self.group, told)
            self.group.close(0.5)
        elif self.links is not None:
            self.links.close(0.0)
        if isinstance(told, Paused):
            return EXIT_PAUSED
        echo = bool(told.facts.get("echo"))
        self.channel.report(
            StageFailed,
            code=told.code,
            message=told.message[:2000],
            hint=told.hint[:500],
            echo=echo,
            lost=isinstance(told, LinkFailed) or told.code in PASSING,
        )
        return EXIT_FAILED

    @staticmethod
    def _tell_neighbours(group: StageGroup, told: SwarmError) -> None:
        """Say why, and stay long enough for it to arrive: a closing socket may take it along."""
        group.fail(told)
        with suppress(SwarmError):
            group.check()
        time.sleep(LET_NEIGHBOURS_HEAR_S)


def failure_of(error: BaseException) -> SwarmError:
    """The cause as an error of ours: the engine and autograd wrap what they did not expect."""
    found = find_cause(error)
    if found is not None:
        return found
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, torch.OutOfMemoryError):
            return cannot_fit(link)
        if link.__cause__ is None:
            break
        link = link.__cause__
    log.error("unexpected", exc_info=error)
    return SwarmError(
        "stage-failed",
        f"{type(link).__name__}: {str(link).strip()[:1500]}",
        hint="see this stage's log",
    )


def _empty(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def main() -> None:
    """Run on stdin and stdout."""
    code = run_worker(Channel.from_stdio())
    # Threads of libraries, and the one that reads the channel, must not hold the process.
    os._exit(code)


if __name__ == "__main__":
    main()
