"""What a scenario says of hosts: [cluster.host], [search] offload, [plan] offload_*."""

import pytest

from nestsim import Scenario
from planner.step.plan import NO_OFFLOAD, Offload
from tests import failures
from topologies.accelerators import HOST_LINKS
from topologies.errors import InputError

BASE = {
    "name": "offload",
    "model": {"name": "gpt3-1.3b", "num_layers": 4},
    "training": {"global_batch_size": 8},
    "software": {"preset": "ideal"},
    "cluster": {
        "accelerator": "a100-40gb",
        "network": {
            "kind": "fat-tree",
            "levels": [
                {
                    "name": "node",
                    "fan_out": 2,
                    "bandwidth": "300 GB/s",
                    "latency": "1 us",
                }
            ],
        },
    },
}


def loaded(**settings):
    return Scenario.from_dict(BASE).replace(
        {name.replace("__", "."): value for name, value in settings.items()}
    )


def test_a_silent_scenario_has_the_accelerators_usual_host():
    host = loaded().host
    assert host.to_device == HOST_LINKS["pcie4"]["to_device"]
    assert (host.memory, host.devices_per_link, host.latency) == (128e9, 1, 2e-6)
    assert loaded().search.offload == (NO_OFFLOAD,)


def test_what_is_written_of_a_host_holds():
    host = loaded(
        cluster__host={
            "link": "pcie5",
            "bandwidth_to_host": "20 GB/s",
            "latency": "5 us",
            "devices_per_link": 2,
            "memory": "50 GB",
            "adam_parameters_per_second": 1e9,
        }
    ).host
    assert host.to_device == HOST_LINKS["pcie5"]["to_device"]
    assert (host.to_host, host.devices_per_link) == (20e9, 2)
    assert host.latency == pytest.approx(5e-6)
    assert (host.memory, host.adam_rate) == (50e9, 1e9)


def test_every_name_is_tried_with_every_fraction():
    found = loaded(
        search__offload=["none", "optimizer", "optimizer+activations"],
        search__offload_fractions=[0.5, 1.0],
    ).search.offload
    assert found[0] == NO_OFFLOAD
    assert set(found[1:]) == {
        Offload(optimizer=0.5),
        Offload(optimizer=1.0),
        Offload(optimizer=0.5, activations=0.5),
        Offload(optimizer=1.0, activations=1.0),
    }


@failures.over(
    ("settings", "where"),
    [
        ({"search__offload": ["disk"]}, "search.offload[0]"),
        ({"search__offload": ["optimizer+optimizer"]}, "search.offload[0]"),
        ({"search__offload_fractions": [0.0]}, "search.offload_fractions[0]"),
        (
            {"search__offload": ["weights"], "search__recompute": ["stage"]},
            "search.offload",
        ),
        ({"cluster__host": {"link": "pcie9"}}, "cluster.host.link"),
        ({"cluster__host": {"memory": "much"}}, "cluster.host.memory"),
        ({"plan": {"micro_batch_size": 1, "offload_weights": 2.0}}, "offload_weights"),
        (
            {"plan": {"micro_batch_size": 1, "offload_weights": [0.5, 0.5]}},
            "plan.offload_weights",
        ),
        (
            {"plan": {"micro_batch_size": 1, "recompute_num_layers": 2}},
            "plan.recompute_num_layers",
        ),
    ],
)
def test_what_is_wrong_is_named(settings, where):
    with pytest.raises(InputError) as caught:
        loaded(**settings)
    assert where in caught.value.where
