"""What the handlers of operations work with: the parts of a leader, by name.

control.leader makes one. Nothing here but names.
"""

from dataclasses import dataclass, field

from control.clock import Clock
from control.datasets.buckets import Buckets
from control.datasets.hub_data import HubDataSets
from control.datasets.model_store import ModelStore
from control.datasets.token_shop import TokenShop
from control.fellows.credentials import Credentials
from control.fellows.invites import Invites
from control.fellows.registry import Registry
from control.jobs.exports import Exports
from control.jobs.lifecycle import Jobs
from control.jobs.planner import PoolPlanner
from control.jobs.results import Results
from control.jobs.verifying import Verifications
from control.records.events import Events
from control.records.job_files import JobFiles
from control.settings import Settings
from control.snapshots.keeper import Snapshots
from control.store.database import Database
from transport.ids import RandomBytes


@dataclass(frozen=True)
class Office:
    """The parts of a leader."""

    settings: Settings
    clock: Clock
    random_bytes: RandomBytes
    database: Database
    events: Events
    registry: Registry
    invites: Invites
    credentials: Credentials
    buckets: Buckets
    tokens: TokenShop
    datasets: HubDataSets
    models: ModelStore
    planner: PoolPlanner
    jobs: Jobs
    results: Results
    exports: Exports
    verifications: Verifications
    snapshots: Snapshots
    files: JobFiles
    relay_key: bytes = field(default=b"", repr=False)
    """What the leader's own relay checks tickets with."""
