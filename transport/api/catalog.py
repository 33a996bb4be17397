"""Every operation there is, by name. Faces are built from this list and from nothing else."""

from transport.api import buckets, exports, fellows, jobs, pools, saved_states, serving, verify
from transport.api.operation import Operation

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        *pools.ALL,
        *fellows.ALL,
        *jobs.ALL,
        *saved_states.ALL,
        *buckets.ALL,
        *exports.ALL,
        *serving.ALL,
        *verify.ALL,
    )
}
