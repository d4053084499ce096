"""Why a row of measurements is not predicted."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from topologies.errors import InputError, readable

_LONGEST = 1000

REFUSALS: Mapping[str, str] = MappingProxyType(
    {
        "missing-column": "a column that decides the result is empty",
        "missing-measurement": "the row states nothing that can be compared",
        "ambiguous-measurement": "it is not stated which FLOPs are counted",
        "unknown-accelerator": "the catalogue has no such device",
        "unknown-network": "the links are not stated in a form that can be read",
        "unknown-precision": "the number format is not known",
        "low-precision": "an 8- or 4-bit format that the accelerator has no rate for",
        "unknown-recompute": "what is recomputed is not one of the modelled modes",
        "unknown-sharding": "what is sharded is not one of the modelled ways",
        "offload": "offloading to the host is not modelled",
        "uneven-plan": "stages with unlike parallel sizes or recompute",
        "fine-tuning": "fine-tuning of adapters (LoRA) is not modelled",
        "unknown-model": "the architecture has parts that are not modelled",
        "contradiction": "columns contradict each other",
        "no-such-model": "the columns do not make an architecture",
        "no-such-cluster": "the columns do not make a cluster",
        "no-such-plan": "the planner cannot express the plan",
        "other-collective": "the operation is not one that is predicted",
        "other-bandwidth": "the bandwidth is not defined by time and size",
        "undocumented-ratio": "a ratio without the measurement behind it",
        "broken-cluster": "the source itself calls the cluster misconfigured",
        "imprecise-measurement": "printed with too few digits to compare",
        "other-metric": "the metric is not a size of memory",
        "other-place": "it is not stated in a known way which device was measured",
    }
)
"""Stable code -> what it means."""


class RowRefusedError(Exception):
    """A row that cannot be expressed, and why.

    Parameters
    ----------
    code
        A key of `REFUSALS`.
    reason
        One sentence about this row.
    """

    def __init__(self, code: str, reason: str) -> None:
        assert code in REFUSALS
        self.code, self.reason = code, readable(reason, _LONGEST)
        super().__init__(self.reason)


@contextmanager
def refusing(code: str) -> Iterator[None]:
    """Refuse the row, with this code, for what is wrong with its values."""
    try:
        yield
    except InputError as error:
        raise RowRefusedError(code, error.one_line()) from None
