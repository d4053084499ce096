"""Files with several jobs: what is read, and what is refused, where it is."""

from pathlib import Path
from typing import Any

import pytest

import nestsim
from nestsim.features.jobs.scenario import JobsScenario
from nestsim.scenario.load import Scenario
from tests import failures
from tests.nestsim.features.jobs.jobs_files import MODEL, document, job
from topologies.errors import InputError

TWO = document(job("a", "0-3"), job("b", "4-7, 12-14:2"))


def refused(data: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        JobsScenario.from_dict(data, "two.toml")
    return str(caught.value)


def test_each_job_is_a_scenario_with_its_tables_over_the_common_ones() -> None:
    data = document(
        job("a", "0-3", training={"global_batch_size": 4}),
        job("b", 4, model={"num_layers": 3}, plan={"zero_stage": 1}),
        simulation={"granularity": "layer"},
    )
    file = JobsScenario.from_dict(data)
    first, second = file.tenants
    assert first.scenario.training.global_batch_size == 4
    assert second.scenario.training.global_batch_size == 8
    assert (first.scenario.spec.num_layers, second.scenario.spec.num_layers) == (2, 3)
    assert second.scenario.plan is not None
    assert second.scenario.plan.zero_stage == 1
    assert second.scenario.plan.tensor_model_parallel_size == 2
    assert {one.scenario.simulation.granularity for one in file.tenants} == {"layer"}
    assert [one.name for one in file.tenants] == ["a", "b"]
    assert second.scenario.name == "small: b"


def test_a_job_may_have_all_of_its_model_for_itself() -> None:
    data = document(job("a", 4, model=MODEL), job("b", 4, model={"name": "bert-large"}))
    del data["model"]
    file = JobsScenario.from_dict(data)
    assert file.tenants[1].scenario.spec.num_layers == 24


def test_devices_are_ranges() -> None:
    first, second = JobsScenario.from_dict(TWO).tenants
    assert first.devices is not None
    assert second.devices is not None
    assert first.devices.tolist() == [0, 1, 2, 3]
    assert second.devices.tolist() == [4, 5, 6, 7, 12, 14]


def test_a_start_and_seeds_are_read() -> None:
    data = document(
        job("a", 4), job("b", 4, start="250 ms"), shared={"ecmp_seeds": [3, 1]}
    )
    file = JobsScenario.from_dict(data)
    assert [one.start for one in file.tenants] == [0.0, 0.25]
    assert file.ecmp_seeds == (3, 1)


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "one job": (document(job("a", 4)), "jobs: one job", "2 to 64"),
    "no jobs": (document(), "jobs: there are no jobs", "nestsim run FILE"),
    "no list": ({**TWO, "jobs": 3}, "jobs: has the wrong type", "[[jobs]]"),
    "overlapping": (
        document(job("a", "0-3"), job("b", "3-6")),
        'jobs[1].devices: device 3 is already taken by the job "a"',
        "every device in one job",
    ),
    "twice": (
        document(job("a", "0-3, 2"), job("b", 4)),
        "jobs[0].devices: names a device twice",
        "2",
    ),
    "no such device": (
        document(job("a", "0-3"), job("b", "12-16")),
        "jobs[1].devices: no such device",
        "0 to 15",
    ),
    "no range": (
        document(job("a", "0..3"), job("b", 4)),
        "jobs[0].devices: is not a range",
        "0-511",
    ),
    "too many": (
        document(job("a", "0-7"), job("b", 9)),
        "jobs: the jobs take more devices",
        "8 + 9 = 17",
    ),
    "unknown placement": (
        document(job("a", 4, placement="far"), job("b", 4)),
        "jobs[0].placement: unknown choice",
        '"compact", "spread", "best"',
    ),
    "placement of given devices": (
        document(job("a", "0-3", placement="best"), job("b", 4)),
        "jobs[0].placement: is of devices that are chosen",
        "num_devices",
    ),
    "nowhere": (
        document({"name": "a"}, job("b", 4)),
        "jobs[0].devices: says where the job runs by none or both",
        "num_devices",
    ),
    "two of one name": (
        document(job("a", 4), job("a", 4)),
        "jobs[1].name: is the name of another job",
        "another name",
    ),
    "unknown key": (
        document(job("a", 4), job("b", 4, cluster={})),
        "jobs[1].cluster: unknown setting",
        "devices",
    ),
    "job's own setting": (
        document(job("a", 4), job("b", 4, training={"global_batch_size": -1})),
        "jobs[1].training.global_batch_size: must be at least 1",
        "-1",
    ),
    "common setting": (
        document(job("a", 4), job("b", 4), training={"global_batch_size": "8"}),
        "training.global_batch_size: must be a whole number",
        "8",
    ),
    "missing table": (
        {key: one for key, one in TWO.items() if key != "training"},
        "jobs[0].training: setting is missing",
        "",
    ),
    "common cluster": (
        document(job("a", 4), job("b", 4), cluster={"accelerator": "h101"}),
        "cluster.accelerator: no such accelerator",
        "h100-sxm",
    ),
    "unknown shared key": (
        document(job("a", 4), job("b", 4), shared={"seeds": [1]}),
        "shared.seeds: unknown setting",
        "ecmp_seeds",
    ),
}


@failures.over("case", WRONG.values(), ids=WRONG)
def test_a_mistake_is_named_with_file_and_setting(
    case: tuple[dict[str, Any], str, str],
) -> None:
    data, start, also = case
    message = refused(data)
    assert message.startswith(f"two.toml: {start}"), message
    assert also in message


def test_a_plan_that_does_not_fit_is_the_job_s() -> None:
    data = document(job("a", 4), job("b", 6, plan={"data_parallel_size": 5}))
    with pytest.raises(InputError) as caught:
        nestsim.jobs(data)
    assert str(caught.value).startswith("scenario.toml: jobs[1].plan.")


def test_other_commands_say_what_to_do_with_several_jobs() -> None:
    with pytest.raises(InputError, match="several jobs that share a cluster") as caught:
        Scenario.from_dict(TWO)
    assert "nestsim jobs FILE" in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.toml"):
        JobsScenario.from_file(tmp_path / "nowhere.toml")


def test_the_files_of_all_jobs_are_inputs() -> None:
    file = JobsScenario.from_dict(TWO, "somewhere/two.toml")
    assert file.files() == (Path("somewhere/two.toml"),)
