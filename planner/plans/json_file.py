"""Read a plan from a file, as `nestsim run` writes it into its folder of results."""

from pathlib import Path

from planner.step.plan import MOST_DEVICES, Offload, Plan, parsed_ranges
from topologies.errors import InputError
from topologies.input_file import Value, read_json

MAX_FILE = 128 * 2**20
"""Longest file that is read [byte]: a plan on 16 million devices takes as much in
lists."""

MOST = 1_000_000_000
"""Largest size that a plan may name: those above it are slips of the keyboard."""

_EXPECTED = "a plan in JSON, such as plan.json in a folder of results"
_COUNTS = (
    "virtual_pipeline_model_parallel_size",
    "micro_batch_size",
    "num_microbatches",
)


def read_plan(path: Path) -> Plan:
    """Read a plan; that it fits a scenario, `planner.plans.checks.check_plan` says.

    Raises
    ------
    InputError
        If the file cannot be read or does not hold a plan. The message starts with
        the file and the key.
    """
    try:
        file = Value(read_json(path, expected=_EXPECTED, most_bytes=MAX_FILE))
        _check_forms(file)
        return Plan.from_json(file.table())
    except InputError as error:
        raise error.at(str(path), ": ") from None


def _check_forms(file: Value) -> None:
    """Refuse values of another type or out of range, naming the key."""
    for name, value in file["parallel"].items():
        if name == "sequence_parallel":
            value.flag()
        elif name == "cp_comm_type":
            value.text()
        elif name == "hierarchical_context_parallel_sizes":
            for size in value.array(least=1):
                _count(size)
        else:
            _count(value)
    for name in _COUNTS:
        _count(file[name])
    stages = file["stages"]
    if sum(_check_stage(stage) for stage in stages.array(least=1)) > MOST_DEVICES:
        raise InputError(
            "names too many devices",
            where=stages.where,
            expected=f"at most {MOST_DEVICES:,} devices",
        )


def _count(value: Value, *, least: int = 1, most: int = MOST) -> None:
    """Refuse what is no whole number; the fractions of a plan are those of hosts."""
    if isinstance(value.raw, float):
        raise value.error("must be a whole number", "whole numbers: 8, not 8.0")
    value.whole(least=least, most=most)


def _check_stage(stage: Value) -> int:
    """Check a stage and count its devices."""
    _count(stage["zero_stage"], least=0, most=3)
    _count(stage["sharding_group_size"])
    for name, part in stage.get("offload", {}).items():
        if name not in Offload._fields:
            raise part.error("is nothing that hosts keep", ", ".join(Offload._fields))
        part.number()
    _count(stage.get("zero_hpz_partition_size", 1))
    if stage.get("recompute_num_layers", None).raw is not None:
        _count(stage["recompute_num_layers"], least=0)
    for chunk in stage["chunks"].array(least=1):
        ends = [end.whole(least=0, most=MOST) for end in chunk.array(least=2)]
        if len(ends) > 2:
            raise chunk.error("is not an interval", "the first and the last layer")
    return _check_devices(stage["devices"])


def _check_devices(devices: Value) -> int:
    """Count devices, given as ranges or as a list of numbers for each replica."""
    rows = devices.array(least=1)
    if isinstance(rows[0].raw, str):
        try:
            return sum(len(numbers) for numbers in parsed_ranges(devices.raw))
        except InputError as error:
            raise error.at(devices.where, "") from None
    for row in rows:
        for device in row.array(least=1):
            device.whole(least=0, most=MOST)
    return sum(len(row.raw) for row in rows)
