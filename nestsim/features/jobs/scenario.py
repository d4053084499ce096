"""Files with several jobs: each of them is an ordinary scenario on the common cluster.

A job's scenario is what the file says for all jobs, with the job's own tables over it,
setting by setting. So a job has all that a scenario has, and is checked like one.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from nestsim.scenario.editing import toml_text
from nestsim.scenario.errors import checked
from nestsim.scenario.load import MAX_FILE, UNSAVED, Scenario, scenario_of
from nestsim.scenario.table import (
    MOST_JOBS,
    OWN_TABLES,
    PLACEMENTS,
    JobTable,
    SharedTable,
)
from planner.step.plan import parsed_ranges
from topologies.arrays import IntArray
from topologies.errors import InputError, located, short_repr
from topologies.input_file import parse_toml, read_file

_RANGES = 'ranges of devices, such as "0-511" or "0-255, 512-767"'

_FIRST_PARTS = re.compile(r"([A-Za-z_]+)(?:\.([A-Za-z_]+))?")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tenant:
    """One of several jobs on a cluster."""

    index: int
    """Place among the jobs of the file."""

    name: str
    """What reports call it."""

    scenario: Scenario
    """The job, as if it were alone on the cluster."""

    num_devices: int
    """Devices that it runs on."""

    devices: IntArray | None
    """Their numbers, rising, where the file has them; else None."""

    placement: str
    """How they are chosen where the file does not have them, one of `PLACEMENTS`."""

    start: float
    """Moment at which its first step begins [s]."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobsScenario:
    """Several jobs on one cluster, read and checked."""

    path: Path
    """The file."""

    text: bytes
    """What it says."""

    name: str
    """What the user calls it."""

    tenants: tuple[Tenant, ...]
    """The jobs, two or more, in the order of the file."""

    ecmp_seeds: tuple[int, ...]
    """Seeds of the hash that picks cables; empty for the network as it is."""

    most_steps: int
    """Steps of the slowest of the jobs that meet, at most."""

    shifts: int
    """Starts of each job that meets others for which they are replayed; 0 for none."""

    __repr__ = short_repr

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "JobsScenario":
        """Read and check a file with several jobs.

        Raises
        ------
        InputError
            If the file cannot be read or something in it is wrong. The message starts
            with the file and the setting.
        """
        file = Path(path)
        with located(str(file), ": "):
            text = read_file(
                file, expected="a file with tables [[jobs]]", most_bytes=MAX_FILE
            )
            return _jobs_of(parse_toml(text), file, text)

    @classmethod
    def from_dict(
        cls, document: Mapping[str, Any], path: str | os.PathLike[str] = UNSAVED
    ) -> "JobsScenario":
        """Check jobs that are given as tables inside each other.

        Parameters
        ----------
        document
            What TOML would make of a file with tables [[jobs]].
        path
            The file that it stands for; it need not be there.

        Raises
        ------
        InputError
            If something in it is wrong. The message starts with the path.
        """
        file = Path(path)
        with located(str(file), ": "):
            return _jobs_of(document, file, toml_text(document).encode())

    @property
    def cluster(self) -> Scenario:
        """A scenario that has the cluster of all jobs."""
        return self.tenants[0].scenario

    def with_ecmp_seeds(self, seeds: Sequence[int]) -> "JobsScenario":
        """Return the same jobs with other seeds, each once; none for no seeds.

        Raises
        ------
        InputError
            If they are no seeds.
        """
        listed = list(dict.fromkeys(seeds))
        if listed:
            checked(SharedTable, {"ecmp_seeds": listed})
        return replace(self, ecmp_seeds=tuple(listed))

    def with_shifts(self, shifts: int) -> "JobsScenario":
        """Return the same jobs with another number of starts of each.

        Raises
        ------
        InputError
            If it is no such number.
        """
        checked(SharedTable, {"shifts": shifts})
        return replace(self, shifts=shifts)

    def files(self) -> tuple[Path, ...]:
        """Return the files that the jobs are read from; their own comes first."""
        named = chain.from_iterable(tenant.scenario.files() for tenant in self.tenants)
        return tuple(dict.fromkeys((self.path, *named)))


def _jobs_of(document: Mapping[str, Any], file: Path, text: bytes) -> JobsScenario:
    jobs = document.get("jobs")
    if not jobs:
        raise InputError(
            "there are no jobs to run together",
            where="jobs",
            expected="two or more tables [[jobs]], each with a name and devices",
            hint="nestsim run FILE plans a scenario of one job",
        )
    _check_list(jobs)
    tables = []
    for index, job in enumerate(jobs):
        with located(f"jobs[{index}]"):
            tables.append(checked(JobTable, job))
    with located("shared"):
        shared = checked(SharedTable, document.get("shared", {}))
    common = {
        key: value for key, value in document.items() if key not in {"jobs", "shared"}
    }
    tenants = tuple(
        _tenant(index, table, _scenario(common, index, table, file))
        for index, table in enumerate(tables)
    )
    _check_together(tenants)
    name = document["name"]  # text, as the scenarios of the jobs have found
    return JobsScenario(
        path=file,
        text=text,
        name=name,
        tenants=tenants,
        ecmp_seeds=tuple(shared.ecmp_seeds or ()),
        most_steps=shared.most_steps,
        shifts=shared.shifts,
    )


def _check_list(jobs: object) -> None:
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        raise InputError(
            "has the wrong type",
            where="jobs",
            got=type(jobs).__name__,
            expected="tables, each below [[jobs]]",
        )
    if not 2 <= len(jobs) <= MOST_JOBS:
        raise InputError(
            "one job has nobody to share with" if len(jobs) < 2 else "too many jobs",
            where="jobs",
            got=f"{len(jobs)} [[jobs]]",
            expected=f"2 to {MOST_JOBS} of them",
        )


def _scenario(
    common: Mapping[str, Any], index: int, table: JobTable, file: Path
) -> Scenario:
    """Return the scenario of one job."""
    own = {
        name: one for name in OWN_TABLES if (one := getattr(table, name)) is not None
    }
    document = {
        **common,
        **{name: _over(common.get(name), one) for name, one in own.items()},
    }
    if isinstance(common.get("name"), str):
        document["name"] = f"{common['name']}: {table.name}"[:_LONGEST_NAME]
    try:
        return scenario_of(document, file, toml_text(document).encode())
    except InputError as error:
        raise _placed(error, index, own, common) from None


_LONGEST_NAME = 200


def _over(common: object, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's settings over those of all jobs, tables inside them as well."""
    if not isinstance(common, Mapping):
        return dict(own)
    merged = dict(common)
    for key, value in own.items():
        inner = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(inner, Mapping)
        merged[key] = _over(inner, value) if both else value
    return merged


def _placed(
    error: InputError,
    index: int,
    own: Mapping[str, Mapping[str, Any]],
    common: Mapping[str, Any],
) -> InputError:
    """Return an error of a job's scenario with the place in the file that it is about.

    What only the common tables say is not about the job.
    """
    found = _FIRST_PARTS.match(error.where)
    table, setting = found.groups() if found else ("", None)
    said = common.get(table)
    if table in own:
        is_common = isinstance(said, Mapping) and setting in said
        is_own = setting in own[table] or not is_common
    else:
        is_own = table in OWN_TABLES and said is None
    where = f"jobs[{index}].{error.where}" if is_own else error.where
    others = [_placed(other, index, own, common) for other in error.others]
    return error.moved(where, others)


def _tenant(index: int, table: JobTable, scenario: Scenario) -> Tenant:
    with located(f"jobs[{index}]"):
        devices = _devices(table, scenario.network_spec.num_devices)
    count = table.num_devices if devices is None else len(devices)
    assert count is not None
    return Tenant(
        index=index,
        name=table.name,
        scenario=scenario,
        num_devices=count,
        devices=devices,
        placement=table.placement or PLACEMENTS[0],
        start=table.start,
    )


def _devices(table: JobTable, most: int) -> IntArray | None:
    """Return the devices that a job names, rising; None if it says how many."""
    if (table.devices is None) == (table.num_devices is None):
        raise InputError(
            "says where the job runs by none or both of its settings",
            where="devices",
            expected='either devices = "0-511" or num_devices = 512',
        )
    if table.devices is None:
        return None
    if table.placement is not None:
        raise InputError(
            "is of devices that are chosen, and the file names them",
            where="placement",
            got=table.placement,
            expected="num_devices = 512 in place of devices, or no placement",
        )
    texts = [part.strip() for part in table.devices.split(",")]
    try:
        ranges = parsed_ranges(texts)
    except InputError as error:
        raise InputError(
            error.problem, where="devices", got=error.got, expected=_RANGES
        ) from None
    last = max(part[-1] for part in ranges)
    if last >= most:
        raise InputError(
            "no such device",
            where="devices",
            got=last,
            expected=f"0 to {most - 1}, the devices of the cluster",
        )
    numbers = np.sort(np.fromiter(chain.from_iterable(ranges), np.int64))
    twice = np.flatnonzero(np.diff(numbers) == 0)
    if twice.size:
        raise InputError(
            "names a device twice",
            where="devices",
            got=int(numbers[twice[0]]),
            expected="every device once",
        )
    return numbers


def _check_together(tenants: Sequence[Tenant]) -> None:
    """Refuse jobs of one name, on the same devices, or of too many devices."""
    names: dict[str, int] = {}
    owner: dict[int, Tenant] = {}
    for tenant in tenants:
        where = f"jobs[{tenant.index}]"
        if tenant.name in names:
            raise InputError(
                "is the name of another job",
                where=f"{where}.name",
                got=tenant.name,
                expected="another name for every job",
            )
        names[tenant.name] = tenant.index
        for device in () if tenant.devices is None else tenant.devices.tolist():
            other = owner.setdefault(device, tenant)
            if other is not tenant:
                raise InputError(
                    f'device {device} is already taken by the job "{other.name}"',
                    where=f"{where}.devices",
                    expected="every device in one job",
                )
    total = sum(tenant.num_devices for tenant in tenants)
    most = tenants[0].scenario.network_spec.num_devices
    if total > most:
        raise InputError(
            "the jobs take more devices than the cluster has",
            where="jobs",
            got=f"{' + '.join(str(one.num_devices) for one in tenants)} = {total:,}",
            expected=f"at most {most:,} devices together",
        )
