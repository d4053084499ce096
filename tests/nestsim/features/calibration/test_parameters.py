"""What fit.toml may say."""

import math
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
import tomli

from estimators.constants import load_constants
from nestsim.evaluate.uncertainty import (
    Fitted,
    Setting,
    Uncertainty,
    band,
    load_uncertainty,
    memory_band,
    narrowest,
    room_band,
    traits_of,
)
from nestsim.features.calibration.bands import uncertainty_toml
from nestsim.features.calibration.parameters import load_fit_spec, parse_fit_spec
from nestsim.scenario.load import Scenario
from planner.frameworks.framework import PRESETS
from tests import failures
from topologies.errors import InputError


def test_shipped_priors_lie_within_their_bounds():
    spec = load_fit_spec()
    assert all(one.lower <= one.prior <= one.upper for one in spec.parameters)
    assert all(one.reason for one in spec.exclusions)


@failures.over(
    "entry",
    [
        {"prior": 1.0, "sigma": 0.1, "lower": 0.5},
        {"prior": 1.0, "sigma": 0.1, "lower": 0.5, "upper": 2.0, "upto": 3.0},
        {"prior": 3.0, "sigma": 0.1, "lower": 0.5, "upper": 2.0},
        {"prior": 1.0, "sigma": 0.0, "lower": 0.5, "upper": 2.0},
        {"prior": 1.0, "sigma": 0.1, "lower": 0.0, "upper": 2.0},
    ],
)
def test_constants_that_cannot_be_fitted_are_refused_by_name(entry):
    with pytest.raises(InputError) as error:
        parse_fit_spec({"row_error": 0.1, "constants": {"a.b.c": entry}})
    assert error.value.where == "constants.a.b.c"


def test_an_exclusion_needs_a_reason():
    with pytest.raises(InputError):
        parse_fit_spec({"row_error": 0.1, "excluded": [{"quality": "C"}]})


SCENARIOS = Path(__file__).parents[4] / "scenarios"

JOB = Setting(
    source="mine",
    software="fsdp",
    accelerator="h100-sxm",
    num_devices=64,
    has_experts=False,
)

BANDS = Uncertainty(
    measured={"all": 0.1, "cluster": 0.08, "cluster fsdp": 0.05},
    new={"all": 0.2, "cluster": 0.15},
    wider={
        "software": 0.2,
        "chip": 0.08,
        "kernels": 0.2,
        "release": 0.08,
        "model": 0.08,
    },
    memory={
        "all": tuple(0.02 * k for k in range(-4, 5)),
        "fsdp": tuple(0.05 * k for k in range(-6, 3)),
    },
    fitted=Fitted(
        sources=frozenset({"mine"}),
        software=frozenset({"fsdp"}),
        accelerators=frozenset({"h100-sxm"}),
        traits={"fsdp": frozenset({"latent attention"})},
        releases={"fsdp": ("2.4", "26.08")},
    ),
)


def test_the_narrowest_class_that_there_is_counts():
    assert BANDS.half_width(JOB) == 0.05
    assert BANDS.half_width(replace(JOB, num_devices=8)) == 0.1
    assert BANDS.half_width(replace(JOB, source="")) == 0.15
    assert BANDS.half_width(replace(JOB, assumes_layout=True)) == 0.1
    low, high = BANDS.band(JOB)
    assert low * high == pytest.approx(1.0)


@failures.over(
    ("changes", "width", "words"),
    [
        ({}, 0.15, []),
        ({"software": "ddp"}, 0.25, ["no row of ddp is known"]),
        ({"accelerator": "h100-pcie"}, 0.15, []),
        ({"accelerator": "b200"}, 0.17, ["no row of b200 was measured"]),
        (
            {"accelerator": "tpu-v7"},
            0.25,
            ["no row of tpu-v7 was measured, its kernels are those of a100-80gb"],
        ),
        ({"release": "2.4"}, 0.15, []),
        (
            {"release": "2.13"},
            0.17,
            ["release 2.13 is newer than all that were measured"],
        ),
        ({"release": "26.06.01"}, 0.15, []),
        (
            {"traits": frozenset({"Mamba-2 layers"})},
            0.17,
            ["no row of fsdp has Mamba-2 layers"],
        ),
        ({"traits": frozenset({"latent attention"})}, 0.15, []),
    ],
)
def test_a_band_widens_with_what_a_job_is_unlike_and_says_why(changes, width, words):
    job = replace(JOB, source="", **changes)
    assert BANDS.half_width(job) == pytest.approx(width)
    reasons = BANDS.reasons(job)
    assert [reason.words for reason in reasons] == words
    added = math.exp(width) - math.exp(0.15)
    assert sum(reason.added for reason in reasons) == pytest.approx(added)


def test_traits_are_those_of_the_model_and_its_dispatcher():
    scenario = Scenario.from_file(SCENARIOS / "deepseek_v3_2048_h800.toml")
    software = replace(scenario.software, moe_token_dispatcher_type="flex")
    assert traits_of(scenario.spec, software) == {
        "latent attention",
        "experts reached by flex",
    }


def test_bands_of_memory_are_of_the_preset():
    low, high = BANDS.memory_band("fsdp").band
    assert (low, high) == pytest.approx((math.exp(-0.3), math.exp(0.1)))
    assert BANDS.memory_band("ddp").band.low == pytest.approx(math.exp(-0.08))


def test_what_fits_is_counted_in_deciles():
    band_of_memory = BANDS.memory_band("fsdp")
    counts = [band_of_memory.need(100.0, room) for room in (70.0, 99.0, 101.0, 120.0)]
    assert [one.fits_in_ten for one in counts] == [0, 6, 7, 10]
    assert counts[0].low == pytest.approx(100 * math.exp(-0.3))


def test_how_likely_a_plan_fits_counts_each_loss_to_fragments_beside_each_decile():
    """Thirteen runs that ran out of memory, and nine deciles: 117 cases alike."""
    text = files("nestsim.evaluate").joinpath("fragments.toml").read_text("utf-8")
    runs = tomli.loads(text)["fixed"]
    software, constants = PRESETS["fsdp"].software, load_constants()
    counted = constants.allocator(software.name).full_fragmentation
    plain = memory_band("fsdp")
    needs = [
        decile * (1 + run["unallocated"] / run["allocated"]) / (1 + counted)
        for decile in plain.deciles
        for run in runs
    ]
    band_of_room = room_band("fsdp", software, constants)
    for room in (0.9, 1.0, 1.1, 1.4, 2.0):
        part = sum(need <= room for need in needs) / len(needs)
        assert abs(band_of_room.need(1.0, room).fits_in_ten / 10 - part) <= 0.1
    grown = replace(software, expandable_segments=True)
    # What grows loses so little that the deciles are almost those of sizes.
    assert room_band("fsdp", grown, constants).deciles == pytest.approx(
        plain.deciles, rel=0.01
    )
    assert room_band("maxtext", PRESETS["maxtext"].software, constants) == memory_band(
        "maxtext"
    )


def test_ideal_software_has_no_band():
    assert band(replace(JOB, software="ideal")) is None
    assert memory_band("ideal") is None
    assert band(JOB) is not None


def test_bands_read_back_as_they_were_written():
    tables = tomli.loads(uncertainty_toml(BANDS))
    assert tables["measured"] == BANDS.measured
    assert tables["new"] == BANDS.new
    assert tables["wider"] == BANDS.wider
    assert tables["releases"] == {"fsdp": ["2.4", "26.08"]}
    assert {
        name: pytest.approx(tuple(deciles))
        for name, deciles in tables["memory"].items()
    } == BANDS.memory
    assert tables["traits"] == {"fsdp": ["latent attention"]}


def test_shipped_bands_are_wider_on_clusters_that_were_not_measured():
    shipped = load_uncertainty()
    assert shipped.new["all"] >= shipped.measured["all"]
    assert {"chip", "kernels", "model", "release", "software"} == set(shipped.wider)


@failures.over(
    ("accelerator", "chip"),
    [
        ("h100-sxm-96gb-hbm2e", "h100"),
        ("a100-40gb", "a100"),
        ("gb200", "gb200"),
        ("tpu-v5e", "tpu-v5e"),
    ],
)
def test_bands_are_of_the_generation_of_a_device(accelerator, chip):
    setting = replace(JOB, accelerator=accelerator)
    assert setting.chip == chip
    assert setting.classes()[-1] == f"cluster fsdp {chip}"
    own = replace(BANDS, measured={**BANDS.measured, f"cluster fsdp {chip}": 0.01})
    assert narrowest(own.measured, setting) == 0.01
    assert narrowest(own.measured, replace(setting, software="ddp")) == 0.08
