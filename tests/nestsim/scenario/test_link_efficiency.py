"""What of a link is reached, as scenarios say it and reports show it."""

import json
from pathlib import Path

import pytest

from nestsim.cli import main
from nestsim.evaluate.cluster import cluster_network
from nestsim.scenario import load_scenario
from tests import failures
from topologies.errors import InputError

SCENARIOS = Path(__file__).parents[3] / "scenarios"

SETTINGS = {
    "mixtral_8x7b_128_h100": ("nic_efficiency", "[cluster.network]\n", 1),
    "gpt3_175b_512_tpuv4": ("efficiency", "[[cluster.network.levels]]\n", 0),
    "llama3_70b_256_tpu_torus": ("efficiency", "[cluster.network]\n", 0),
}
"""Scenario -> a setting, the line that it is written below, the tier it is about."""


def with_efficiency(folder: Path, name: str, value: object) -> Path:
    setting, below, _ = SETTINGS[name]
    text = (SCENARIOS / f"{name}.toml").read_text(encoding="utf-8")
    assert below in text
    path = folder / "job.toml"
    changed = text.replace(below, f"{below}{setting} = {value}\n", 1)
    path.write_text(changed, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", SETTINGS)
def test_the_network_carries_what_is_reached_and_is_named_as_built(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tier = SETTINGS[name][2]
    path = with_efficiency(tmp_path, name, 0.75)
    built = cluster_network(load_scenario(SCENARIOS / f"{name}.toml"))
    reached = cluster_network(load_scenario(path))
    part = reached.links.bandwidth / built.links.bandwidth
    slowed = built.links.level == tier
    assert (part[slowed] == 0.75).all()
    assert (part[~slowed] == 1.0).all()
    assert main(["topology", str(path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tiers"]
    before = built.tiers()
    shown = [row["link_bandwidth_bytes_per_s"] for row in rows]
    assert shown == [one.link_bandwidth for one in before]
    assert rows[tier]["efficiency"] == 0.75
    picture = tmp_path / "network.svg"
    assert main(["topology", str(path), "-o", str(picture), "--quiet"]) == 0
    assert "75.0 % reached" in capsys.readouterr().out


@failures.over("name", SETTINGS)
@failures.over("value", [0, 1.5, '"0.9"'])
def test_what_is_no_fraction_is_refused(
    name: str, value: object, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario(with_efficiency(tmp_path, name, value))
    assert caught.value.where.endswith(SETTINGS[name][0])
    assert caught.value.expected.startswith("a number from 1e-06 to 1")
