"""The work of one device in mixers other than plain attention.

A recurrence has what its kernels do (`estimators.tracing.recurrences`), on whole
sequences, for the heads that tensor- and context-parallel groups leave to a device: one
state is worked on by one device. An indexer scores every earlier token for the queries
of a device, in all of its heads on every tensor-parallel rank.
"""

from estimators.layers.work import Degrees, OperatorWork
from estimators.tracing.graph import TracedOperator
from estimators.tracing.recurrences import RECURRENCES


def recurrence_work(
    operator: TracedOperator, degrees: Degrees, element_bytes: int
) -> OperatorWork:
    """Return the work of a recurrence on one device, for one microbatch.

    Parameters
    ----------
    operator
        As it was traced.
    degrees
        Sizes of the groups.
    element_bytes
        Of activations [byte].
    """
    recurrence = RECURRENCES[operator.operation]
    tokens, value, key, heads = operator.dims
    share = heads * degrees.micro_batch_size / (degrees.tp * degrees.cp)
    passes = recurrence.forward, recurrence.backward
    flops = [share * recurrence.flops(work, tokens, key, value) for work in passes]
    moved = [recurrence.elements(work, key, value) for work in passes]
    return OperatorWork(
        operator.name,
        "recurrence",
        float(tokens),
        float(value),
        float(key),
        share,
        *flops,
        *(share * tokens * element_bytes * elements for elements in moved),
    )


def index_scores_work(
    operator: TracedOperator, rows: float, read: float, written: float
) -> OperatorWork:
    """Return the work of an indexer's scores on one device, for one microbatch.

    A kernel leaves out what a causal mask hides, half of the pairs. Only chosen keys
    have gradients: of queries and of keys.

    Parameters
    ----------
    operator
        As it was traced.
    rows
        Queries of the device.
    read, written
        Size of queries and keys, and of scores [byte].
    """
    tokens, keys, width, heads = operator.dims
    flops = operator.model_flops * rows / tokens / 2.0
    chosen = operator._replace(operation="attention").pairs / operator.pairs
    return OperatorWork(
        operator.name,
        "matmul",
        rows,
        keys / 2.0,
        float(width),
        float(heads),
        flops,
        2.0 * chosen * flops,
        read + written,
        2.0 * read + chosen * written,
    )
