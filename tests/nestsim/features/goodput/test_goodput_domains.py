"""Failures of several nodes at once: closed forms, the runs, and the scenario."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

import nestsim
from nestsim.cli import main
from nestsim.features.goodput.closed_form import (
    NodeLoss,
    broken_nodes,
    enough_nodes,
    spares_for,
)
from nestsim.features.goodput.draws import FailureKind
from nestsim.features.goodput.results import GoodputFindings
from nestsim.features.goodput.simulate import RecoveryHabits, run_seeds
from nestsim.scenario.load import load_scenario
from tests import failures
from topologies.errors import InputError

FILE = Path(__file__).parents[4] / "scenarios/goodput/llama3_405b_16384_h100.toml"
DAY = 86400.0


def poisson(mean: float, count: int) -> float:
    return math.exp(-mean) * mean**count / math.factorial(count)


def test_broken_nodes_are_those_of_all_ways_to_break_them() -> None:
    """All numbers of failures of nodes, of pairs and of fives in a repair."""
    losses = [NodeLoss(0.7), NodeLoss(0.3, 2), NodeLoss(0.1, 5)]
    expected = np.zeros(200)
    for counts in itertools.product(range(20), repeat=3):
        broken = sum(n * loss.nodes for n, loss in zip(counts, losses, strict=True))
        chances = [
            poisson(2.0 * loss.rate, n) for n, loss in zip(counts, losses, strict=True)
        ]
        expected[broken] += math.prod(chances)
    got = broken_nodes(losses, 2.0, 200)
    assert got == pytest.approx(expected, abs=1e-12)
    enough = enough_nodes(losses, 2.0, np.arange(20.0))
    assert enough == pytest.approx(expected.cumsum()[:20], abs=1e-12)


def test_one_node_at_once_is_poisson() -> None:
    mixed = enough_nodes([NodeLoss(3.0), NodeLoss(0.0, 2)], 1.0, np.arange(9.0))
    alone = enough_nodes([NodeLoss(3.0)], 1.0, np.arange(9.0))
    assert mixed == pytest.approx(alone, abs=1e-12)


def test_nodes_that_fail_together_need_more_spares() -> None:
    """As many broken nodes on average: eight by themselves, or a rack of eight."""
    needed = [spares_for([NodeLoss(8.0 / n, n)], 1.0, 0.999) for n in (1, 2, 4, 8)]
    assert needed == sorted(set(needed))
    assert needed[-1] == 8 * spares_for([NodeLoss(1.0)], 1.0, 0.999)


def test_very_many_broken_nodes_are_normal() -> None:
    share = enough_nodes([NodeLoss(1e8, 2)], 1.0, np.array([2e8]))
    assert share == pytest.approx(0.5, abs=1e-3)


def rack(nodes: int) -> FailureKind:
    return FailureKind(
        name="rack",
        stream=3,
        count=12,
        rate=1 / (24 * DAY),
        breaks_node=True,
        nodes=nodes,
        source="",
    )


def habits(spares: int) -> RecoveryHabits:
    return RecoveryHabits(
        interval=3600.0,
        copy=0.0,
        write=0.0,
        is_asynchronous=False,
        detection=0.0,
        hang_detection=0.0,
        hang_share=0.0,
        restart=0.0,
        repair=DAY,
        spares=spares,
        num_nodes=48,
    )


@failures.over("spares", [0, 3, 4, 8])
def test_the_time_without_enough_nodes_is_the_closed_form(spares: int) -> None:
    """12 racks of 4, each out for a day of 24: within three standard errors."""
    runs = run_seeds(habits(spares), [rack(4)], range(30), 400 * DAY, num_marks=1)
    waited = runs.shares()["waiting for repair"]
    error = waited.std(ddof=1) / math.sqrt(30)
    losses = [NodeLoss(rack(4).total_rate, 4)]
    (enough,) = enough_nodes(losses, DAY, np.array([float(spares)]))
    assert abs(waited.mean() - (1.0 - enough)) < 3 * error


def test_a_rack_interrupts_once_and_fails_when_its_node_would() -> None:
    whole, single = (
        run_seeds(habits(1000), [rack(nodes)], [1], 400 * DAY) for nodes in (4, 1)
    )
    assert whole.counts.tolist() == single.counts.tolist()
    assert whole.failures.tolist() == single.failures.tolist()


def findings(domain: dict[str, object], **settings: object) -> GoodputFindings:
    asked = {f"goodput.{name}": value for name, value in settings.items()}
    domains = [{"name": "rack power", "mtbf": "2000 d", **domain}]
    scenario = load_scenario(FILE).replace(
        {**asked, "goodput.domains": domains, "goodput.seeds": 4}
    )
    result = nestsim.goodput(scenario.replace({"goodput.duration": "54 d"})).result
    assert result.findings is not None
    return result.findings


def test_domains_are_counted_in_the_cluster() -> None:
    """2,048 nodes are 512 racks of 4; a level's block is as many nodes as it has."""
    racks = findings({"nodes": 4})
    assert (racks.kinds[-1].count, racks.kinds[-1].nodes) == (512, 4)
    nodes = findings({"level": "node"}).kinds[-1]
    assert (nodes.count, nodes.nodes) == (2048, 1)
    assert findings({"level": "fabric"}).kinds[-1].nodes == 2048


def test_racks_need_spares_that_nodes_do_not() -> None:
    """The same nodes broken on average: racks of 16 at 1/16 of the rate."""
    single = findings({"nodes": 1, "mtbf": "500 d"}, spares=16)
    racks = findings({"nodes": 16, "mtbf": "500 d"}, spares=16)
    assert racks.spares_needed > single.spares_needed + 10
    assert racks.enough_nodes < single.enough_nodes


@failures.over(
    ("domain", "words"),
    [
        ({}, "by none or both"),
        ({"nodes": 4, "level": "node"}, "by none or both"),
        ({"level": "moon"}, "no level of the network"),
        ({"nodes": 4096}, "larger than the job"),
        ({"nodes": 4, "name": "device"}, "something else that fails"),
        ({"nodes": 0}, "domains\\[0\\].nodes"),
    ],
)
def test_domains_that_cannot_be_are_refused(
    domain: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        findings(domain)


def test_the_report_says_how_many_nodes_fail_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = FILE.read_text(encoding="utf-8")
    table = '\n[[goodput.domains]]\nname = "rack power"\nnodes = 4\nmtbf = "5000 d"\n'
    file = tmp_path / "job.toml"
    file.write_text(text + table, encoding="utf-8")
    assert main(["goodput", str(file), "--seeds", "2", "--duration", "54 d"]) == 0
    assert "rack power, 4 nodes each" in capsys.readouterr().out
