"""Read a plan from a file, as `nestsim run` writes it into its folder of results."""

from pathlib import Path

from planner.plan import Plan
from topologies.errors import InputError
from topologies.input_file import read_json
from topologies.json_values import Value

MAX_FILE = 16 * 2**20
"""A plan on a million devices takes 8 MB; a longer file is not one [byte]."""

MOST = 1_000_000_000
"""Sizes above it are slips of the keyboard."""

_EXPECTED = "a plan in JSON, such as plan.json in a folder of results"
_COUNTS = (
    "virtual_pipeline_model_parallel_size",
    "micro_batch_size",
    "num_microbatches",
)


def read_plan(path: Path) -> Plan:
    """Read a plan; that it fits a scenario, `planner.plan_checks.check_plan` says.

    Raises
    ------
    InputError
        If the file cannot be read or does not hold a plan. The message starts with
        the file and the key.
    """
    try:
        file = Value(
            read_json(path, expected=_EXPECTED, most_bytes=MAX_FILE, whole_numbers=True)
        )
        _check_forms(file)
        return Plan.from_json(file.table())
    except InputError as error:
        raise error.at(str(path), ": ") from None


def _check_forms(file: Value) -> None:
    """Refuse values of another type or out of range, naming the key."""
    for name, value in file["parallel"].items():
        if name == "sequence_parallel":
            value.flag()
        else:
            value.whole(least=1, most=MOST)
    for name in _COUNTS:
        file[name].whole(least=1, most=MOST)
    for stage in file["stages"].array(least=1):
        _check_stage(stage)


def _check_stage(stage: Value) -> None:
    stage["zero_stage"].whole(least=0, most=3)
    stage["sharding_group_size"].whole(least=1, most=MOST)
    for row in stage["devices"].array(least=1):
        for device in row.array(least=1):
            device.whole(least=0, most=MOST)
    for chunk in stage["chunks"].array(least=1):
        ends = [end.whole(least=0, most=MOST) for end in chunk.array(least=2)]
        if len(ends) > 2:
            raise chunk.error("is not an interval", "the first and the last layer")
