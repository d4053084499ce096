"""The accelerator catalogue."""

from importlib import resources

import pytest
import tomli

from tests import failures
from topologies import InputError, accelerator_names, load_accelerator
from topologies.accelerators import HOST_LINKS

ASKED_FOR = {
    "v100",
    "a100-40gb",
    "a100-80gb",
    "h100-sxm",
    "h200",
    "b200",
    "gb200",
    "b300",
    "gb300",
    "l4",
    "a10g",
    "tpu-v3",
    "tpu-v4",
    "tpu-v5e",
    "tpu-v5p",
    "tpu-v6e",
    "h20",
    "h800",
    "a800",
    "gh200-96gb",
    "gh200-144gb",
    "rtx4090",
    "l40s",
    "mi250x",
    "mi300x",
    "mi325x",
    "mi355x",
    "gaudi2",
    "gaudi3",
    "trainium1",
    "trainium2",
    "ascend-910b",
    "tpu-v7",
    "a100-40gb-pcie",
    "a100-80gb-pcie",
    "h100-pcie",
    "h100-nvl",
    "h200-nvl",
    "mi350x",
}

OPTIONAL = {"vector_engine", "measured_as", "tdp"}

VALUES = {
    "peak_flops",
    "memory_bytes",
    "memory_bandwidth",
    "num_compute_units",
    "interconnect_bandwidth",
}


def test_the_catalogue_has_what_was_asked_for():
    assert set(accelerator_names()) >= ASKED_FOR
    assert list(accelerator_names()) == sorted(accelerator_names())


@failures.over("name", accelerator_names())
def test_every_value_has_a_source_with_a_year(name):
    accelerator = load_accelerator(name)
    assert accelerator.name == name
    assert set(accelerator.sources) - OPTIONAL == VALUES
    assert ("measured_as" in accelerator.sources) == bool(accelerator.measured_as)
    for value, source in accelerator.sources.items():
        dated = any(str(year) in source for year in range(2016, 2027))
        assert dated or "device properties" in source, value


@failures.over("name", accelerator_names())
def test_files_state_every_quantity_with_its_unit(name):
    file = resources.files("topologies") / "catalog" / f"{name}.toml"
    table = tomli.loads(file.read_text(encoding="utf-8"))
    host = table.pop("host", None)
    assert all(isinstance(also, str) for also in table.pop("also_called", []))
    if name != "rtx4090":  # whose servers are whatever people build
        assert set(host) == {"link", "devices_per_link", "memory", "source"}
        assert host["link"] in HOST_LINKS
        assert host["source"]
        assert host["memory"].endswith(" GB")
    assert set(table) - OPTIONAL == VALUES | {"vendor", "sources"}
    assert OPTIONAL & set(table) == OPTIONAL & set(table["sources"])
    for value in VALUES - {"peak_flops", "num_compute_units"}:
        assert isinstance(table[value], str)
    assert all(rate.endswith("TFLOP/s") for rate in table["peak_flops"].values())


@failures.over("name", accelerator_names())
def test_values_are_plausible(name):
    accelerator = load_accelerator(name)
    rates = accelerator.peak_flops
    wide = {"fp32", "tf32", "bf16", "fp16"}
    assert set(rates) <= wide | {"fp8", "mxfp8", "int8", "fp4", "nvfp4"}
    order = [rates[f] for f in ("fp32", "tf32", "bf16", "fp8", "fp4") if f in rates]
    assert order == sorted(order)
    assert rates.get("mxfp8", 0.0) in {0.0, rates.get("fp8")}
    assert rates.get("nvfp4", 0.0) in {0.0, rates.get("fp4")}
    assert 8e9 < accelerator.memory_bytes < 320e9
    assert 2e11 < accelerator.memory_bandwidth < 1e13
    assert 1e10 < accelerator.interconnect_bandwidth < 1e12
    assert 1 <= accelerator.num_compute_units <= 400


@failures.over(
    ("name", "number_format", "rate"),
    [
        ("v100", "fp16", 125e12),
        ("a100-80gb", "bf16", 312e12),
        ("h100-sxm", "bf16", 989.4e12),
        ("h100-sxm", "fp8", 1978.9e12),
        ("b200", "bf16", 2250e12),
        ("gb200", "fp8", 5000e12),
        ("l4", "bf16", 121e12),
        ("tpu-v4", "bf16", 275e12),
        ("tpu-v6e", "bf16", 918e12),
        ("tpu-v5e", "int8", 394e12),
        ("tpu-v6e", "int8", 1836e12),
        ("b300", "bf16", 2250e12),
        ("b300", "fp4", 13500e12),
        ("gb300", "fp8", 5000e12),
        ("b200", "nvfp4", 9000e12),
        ("gb200", "mxfp8", 5000e12),
        ("h20", "bf16", 148e12),
        ("h800", "fp8", 1978.9e12),
        ("a800", "bf16", 312e12),
        ("gh200-144gb", "bf16", 989.4e12),
        ("rtx4090", "bf16", 165.2e12),
        ("l40s", "fp8", 733e12),
        ("mi250x", "bf16", 191.5e12),
        ("mi300x", "bf16", 1307.4e12),
        ("mi325x", "fp8", 2614.9e12),
        ("mi355x", "fp4", 10066.3e12),
        ("gaudi2", "fp8", 865e12),
        ("gaudi3", "bf16", 1835e12),
        ("trainium1", "bf16", 190e12),
        ("trainium2", "fp8", 1299e12),
        ("ascend-910b", "bf16", 24 * 16**3 * 2 * 1.8e9),
        ("tpu-v7", "bf16", 2307e12),
        ("h100-pcie", "bf16", 756e12),
        ("h100-nvl", "fp8", 1670.5e12),
        ("mi350x", "bf16", 256 * 4096 * 2.2e9),
    ],
)
def test_peak_rates_are_the_published_dense_ones(name, number_format, rate):
    assert load_accelerator(name).peak_flops[number_format] == pytest.approx(
        rate, rel=2e-4
    )


@failures.over(
    ("name", "one_way"),
    [
        ("v100", 150e9),
        ("a100-40gb", 300e9),
        ("h100-sxm", 450e9),
        ("b200", 900e9),
        ("h20", 450e9),
        ("h800", 200e9),
        ("a800", 200e9),
        ("gh200-96gb", 450e9),
    ],
)
def test_nvlink_is_half_of_the_advertised_sum_of_both_directions(name, one_way):
    assert load_accelerator(name).interconnect_bandwidth == one_way


def test_formats_that_a_device_lacks_are_left_out():
    assert "fp8" not in load_accelerator("a100-80gb").peak_flops
    assert "bf16" not in load_accelerator("v100").peak_flops


def test_an_unknown_name_gets_the_nearest_spelling():
    with pytest.raises(InputError, match="unknown accelerator") as caught:
        load_accelerator("H100-SMX")
    assert 'did you mean "h100-sxm"?' in str(caught.value)


def test_a_name_that_is_a_path_is_refused():
    with pytest.raises(InputError):
        load_accelerator("../catalog/h100-sxm")


def test_devices_of_one_chip_share_what_was_measured():
    names = {"h20", "h800", "gh200-96gb", "gh200-144gb"}
    for name in names:
        assert load_accelerator(name).constants_name == "h100-sxm"
    assert load_accelerator("a800").constants_name == "a100-80gb"
    assert load_accelerator("mi300x").constants_name == "mi300x"


@failures.over("name", accelerator_names())
def test_what_a_device_is_measured_as_is_in_the_catalogue(name):
    measured_as = load_accelerator(name).measured_as
    assert not measured_as or not load_accelerator(measured_as).measured_as
