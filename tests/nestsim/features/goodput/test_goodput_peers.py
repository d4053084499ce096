"""Checkpoints in the memory of peers: combinatorics, closed forms, runs, scenarios."""

import itertools
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import nestsim
from nestsim.cli import main
from nestsim.features.goodput.cycle import Cycle, Outage, PeerCycle
from nestsim.features.goodput.draws import FailureKind, SlowNodes
from nestsim.features.goodput.expected import expected_cycle
from nestsim.features.goodput.peers import (
    domain_loss,
    groups_of,
    kept_one_by_one,
    kept_share,
)
from nestsim.features.goodput.results import GoodputFindings
from nestsim.features.goodput.simulate import (
    GoodputRuns,
    PeerHabits,
    RecoveryHabits,
    run_seeds,
)
from nestsim.scenario.load import load_scenario
from tests import failures
from topologies.errors import InputError

FILE = Path(__file__).parents[4] / "scenarios/goodput/llama3_405b_16384_h100.toml"
HOUR, DAY = 3600.0, 86400.0


@failures.over(("nodes", "group"), [(6, 1), (6, 2), (9, 3), (8, 4), (10, 5)])
def test_the_chance_to_keep_all_parts_is_that_of_all_ways_to_fail(
    nodes: int, group: int
) -> None:
    groups = groups_of(nodes, group, 1)
    for lost in range(nodes + 1):
        ways = [
            np.bincount(np.delete(groups, out), minlength=nodes // group).all()
            for out in itertools.combinations(range(nodes), lost)
        ]
        assert kept_share(nodes, group, lost) == Fraction(sum(ways), len(ways))


@failures.over(("nodes", "group"), [(16, 2), (128, 2), (1000, 4), (48, 3)])
def test_gemini_s_corollary_is_a_bound_and_exact_for_few(
    nodes: int, group: int
) -> None:
    """Corollary 1: 1 - N C(N-m, k-m) / (m C(N, k)) for k >= m, else 1."""
    for lost in range(1, 4 * group):
        share, bound = kept_share(nodes, group, lost), Fraction(1)
        if lost >= group:
            missing = math.comb(nodes - group, lost - group) * nodes
            bound -= Fraction(missing, group * math.comb(nodes, lost))
        assert share == bound if lost < 2 * group else share >= bound


def test_nodes_lost_one_by_one_are_nodes_lost_together() -> None:
    chances = kept_one_by_one(16, 2)
    for lost in range(len(chances)):
        together = math.prod(chances[: lost + 1])
        assert together == pytest.approx(float(kept_share(16, 2, lost)), rel=1e-12)
    assert chances[-1] == 0.0
    assert kept_one_by_one(16, 1) == (1.0, 0.0)


@failures.over("domain", [1, 2, 3, 4, 6, 24])
@failures.over(("group", "jump"), [(1, 1), (2, 1), (2, 4), (3, 2), (2, 12)])
def test_a_domain_takes_a_group_as_its_nodes_say(
    domain: int, group: int, jump: int
) -> None:
    nodes = 24
    groups = groups_of(nodes, group, jump)
    assert sorted(np.bincount(groups)) == [group] * (nodes // group)
    blocks = [range(at, min(at + domain, nodes)) for at in range(0, nodes, domain)]
    taken = [
        any(set(np.flatnonzero(groups == which)) <= set(block) for which in groups)
        for block in blocks
    ]
    assert domain_loss(nodes, group, jump, domain) == sum(taken) / len(taken)


def test_groups_span_racks_if_they_jump_over_them() -> None:
    assert domain_loss(2048, 2, 1, 16) == 1.0
    assert domain_loss(2048, 2, 16, 16) == 0.0


def job(**settings: object) -> RecoveryHabits:
    given: dict[str, object] = {
        "interval": 1000.0,
        "copy": 0.0,
        "write": 30.0,
        "is_asynchronous": False,
        "detection": 20.0,
        "hang_detection": 200.0,
        "hang_share": 0.1,
        "diagnosis": 50.0,
        "restart": 300.0,
        "read": 100.0,
        "repair": DAY,
        "spares": None,
        "num_nodes": 100_000,
    }
    return RecoveryHabits(**{**given, **settings})


def failing(name: str, stream: int, mtbf: float, **settings: object) -> FailureKind:
    given = {"count": 1, "breaks_node": False, "source": "", **settings}
    return FailureKind(name=name, stream=stream, rate=1 / mtbf, **given)


def held_to_the_closed_form(
    habits: RecoveryHabits,
    kinds: list[FailureKind],
    *,
    errors: float = 3.0,
    slack: float = 0.0,
) -> GoodputRuns:
    cycle = expected_cycle(habits, kinds)
    runs = run_seeds(habits, kinds, range(100), 2000 * cycle.mtti, num_marks=1)
    error = runs.goodput.std(ddof=1) / math.sqrt(100)
    expected = cycle.goodput(habits.interval)
    assert abs(runs.goodput.mean() - expected) < errors * error + slack
    return runs


@failures.over("number", range(10))
def test_the_mean_of_the_runs_with_peers_is_the_closed_form(number: int) -> None:
    """Within 3 standard errors of 100 seeds, for habits drawn at random.

    Racks take the memory of peers or not, nodes are replaced by spares with processes,
    software goes on in its own or not.
    """
    numbers = np.random.default_rng(number)
    mtbf = float(10 ** numbers.uniform(3.5, 4.5))
    interval = mtbf * float(10 ** numbers.uniform(-2, -0.3))
    peer = interval * float(10 ** numbers.uniform(-2, 0))
    peers = PeerHabits(
        interval=peer,
        stall=peer * float(numbers.uniform(0, 0.1)),
        write=peer * float(numbers.uniform(0, 1)),
        read=mtbf * float(10 ** numbers.uniform(-4, -2)),
        kept=kept_one_by_one(100_000, 2),
    )
    write = interval * float(10 ** numbers.uniform(-2, -0.5))
    habits = job(
        interval=interval,
        peers=peers,
        write=write,
        copy=write * float(numbers.uniform(0, 0.5)),
        is_asynchronous=bool(numbers.integers(2)),
        restart=mtbf * float(10 ** numbers.uniform(-2, -0.5)),
        hot_restart=mtbf * float(10 ** numbers.uniform(-3, -2)),
        warm_restart=mtbf * float(10 ** numbers.uniform(-4, -2)),
        read=mtbf * float(10 ** numbers.uniform(-3, -1)),
    )
    loss = float(numbers.uniform(0, 1))
    kinds = [
        failing("node", 1, mtbf, breaks_node=True),
        failing("rack", 2, 3 * mtbf, breaks_node=True, nodes=4, memory_loss=loss),
        failing("software", 3, 2 * mtbf, warm_share=float(numbers.uniform(0, 1))),
    ]
    held_to_the_closed_form(habits, kinds)


@failures.over("hot", [None, 30.0])
@failures.over("warm", [0.0, 0.5])
def test_restarts_of_their_own_without_peers_are_the_closed_form(
    hot: float | None, warm: float
) -> None:
    habits = job(hot_restart=hot, warm_restart=5.0)
    kinds = [
        failing("node", 1, 2000.0, breaks_node=True),
        failing("software", 3, 2000.0, warm_share=warm),
    ]
    held_to_the_closed_form(habits, kinds)


PEERS = PeerHabits(interval=10.0, stall=0.0, write=2.0, read=1.0, kept=(1.0,))


def test_memory_that_every_failure_takes_is_no_memory() -> None:
    """Daly's model, with the time that copies in memory take from the training."""
    for stall in (0.0, 1.0):
        peers = PeerCycle(10.0, stall, 2.0)
        outages = (Outage(20.0, 300.0, 30.0, memory_loss=1.0),)
        cycle = Cycle(
            mtti=5000.0, stall=30.0, background=0.0, outages=outages, peers=peers
        )
        time = 600.0 * (10.0 + stall) / 10.0
        lasts = math.expm1((time + 30.0) / 5000.0)
        daly = 600.0 / (lasts * (5000.0 + cycle.recovery()))
        assert cycle.goodput(600.0) == pytest.approx(daly, rel=1e-12)


def test_memory_that_no_failure_takes_is_checkpoints_as_often_as_there() -> None:
    """Daly's model of those in memory, where those in the storage cost nothing."""
    outages = (Outage(20.0, 300.0, 30.0, memory_loss=0.0),)
    shared = {"mtti": 5000.0, "background": 0.0, "outages": outages}
    cycle = Cycle(stall=0.0, peers=PeerCycle(60.0, 3.0, 0.0), **shared)
    alone = Cycle(mtti=5000.0, stall=3.0, background=0.0, outages=(Outage(20.0, 30.0),))
    assert cycle.goodput(600.0) == pytest.approx(alone.goodput(60.0), rel=1e-12)
    assert cycle.best_interval() == math.inf


@failures.over("loss", [0.01, 0.3, 1.0])
def test_no_interval_beside_peers_is_better_than_the_best_one(loss: float) -> None:
    outages = (Outage(20.0, 300.0, 30.0, memory_loss=loss),)
    cycle = Cycle(
        mtti=5000.0,
        stall=30.0,
        background=0.0,
        outages=outages,
        peers=PeerCycle(10.0, 0.0, 2.0),
    )
    best = cycle.goodput(cycle.best_interval())
    others = [cycle.goodput(interval) for interval in np.geomspace(10, 1e6, 400)]
    # The number of copies in memory between two in the storage is a whole one.
    assert best >= max(others) - 2e-5


def test_a_second_node_of_a_group_takes_the_memory_in_a_restart() -> None:
    """Of nodes that fail in the restart of others, one of N - 1 is the other one."""
    nodes = 10
    habits = job(
        peers=PEERS._replace(kept=kept_one_by_one(nodes, 2)),
        num_nodes=nodes,
        detection=400.0,
        diagnosis=0.0,
        hang_share=0.0,
        restart=0.0,
        read=0.0,
        interval=1e5,
    )
    mtti = 1000.0
    kind = failing("node", 1, mtti, breaks_node=True)
    runs = run_seeds(habits, [kind], range(50), 1000 * mtti, num_marks=1)
    shares = runs.counts[:, 5] / runs.counts[:, 0]
    # What is lost in 400 s of a restart of 1 s: a Poisson number of nodes.
    window = 401.0 / mtti
    expected = 1.0 - sum(
        math.exp(-window)
        * window**more
        / math.factorial(more)
        * float(kept_share(nodes, 2, min(more + 1, nodes)))
        for more in range(20)
    )
    error = shares.std(ddof=1) / math.sqrt(50)
    assert abs(shares.mean() - expected) < 3 * error + 1e-3


@failures.over("detection", [math.inf, 1500.0])
def test_slow_nodes_cost_what_the_closed_form_says(detection: float) -> None:
    """A Poisson number of nodes is slow at a time; the loss is that of training."""
    slow = SlowNodes(share=0.3, time=4000.0, speed=0.6, detection=detection)
    habits = job(slow=slow, interval=500.0, write=5.0)
    kinds = [
        failing("node", 1, 20_000.0, breaks_node=True),
        failing("software", 3, 50_000.0),
    ]
    cycle = expected_cycle(habits, kinds)
    runs = held_to_the_closed_form(habits, kinds, slack=0.002)
    lost = runs.shares()["slow nodes"]
    trains = 1.0 - sum(
        share
        for name, share in runs.shares().items()
        if name not in {"training", "lost work", "slow nodes"}
    )
    shares = lost / trains
    error = shares.std(ddof=1) / math.sqrt(100)
    assert abs(shares.mean() - cycle.slowed) < 3 * error


def test_a_slow_node_that_is_noticed_loses_no_work() -> None:
    slow = SlowNodes(share=1.0, time=4000.0, speed=0.5, detection=100.0)
    kinds = [failing("node", 1, 20_000.0, breaks_node=True)]
    runs = run_seeds(job(slow=slow), kinds, range(5), 100 * DAY)
    swaps = runs.counts[:, 4]
    assert (runs.counts[:, 0] < 0.05 * swaps).all()  # those that hit a restart
    assert (abs(swaps - runs.failures[:, 0]) < 0.05 * swaps).all()


def test_no_number_of_another_job_moves_with_these_habits() -> None:
    """Random numbers of failures stay: repairs, luck and warmth have their own."""
    plain = [failing("node", 1, DAY, breaks_node=True), failing("software", 3, DAY)]
    warm = [plain[0], failing("software", 3, DAY, warm_share=0.5)]
    peers = PEERS._replace(kept=kept_one_by_one(100_000, 2))
    calm = run_seeds(job(), plain, range(3), 100 * DAY)
    other = run_seeds(job(peers=peers), warm, range(3), 100 * DAY)
    assert (calm.failures == other.failures).all()
    assert (other.goodput > calm.goodput).all()


def test_gemini_s_wasted_time_is_a_checkpoint_half_an_interval_and_a_read() -> None:
    """MT-NLG's 530 billion parameters at 20 Gbit/s: 42 minutes, 105 wasted.

    Wang et al., SOSP 2023, section 2: t_ckpt + 1 / (2 f) + t_rtvl, checkpoints one
    after the other; 12 bytes of optimizer states for each parameter.
    """
    write = 530e9 * 12 / (20e9 / 8)
    assert write / 60 == pytest.approx(42, abs=0.5)
    habits = job(
        interval=1.0,
        write=write,
        copy=0.0,
        is_asynchronous=True,
        detection=0.0,
        diagnosis=0.0,
        hang_share=0.0,
        restart=0.0,
        read=write,
    )
    runs = run_seeds(habits, [failing("node", 1, 40 * DAY)], range(40), 4000 * DAY)
    lost = sum(runs.shares()[name] for name in ("lost work", "restart"))
    wasted = lost.sum() * 4000 * DAY / runs.interruptions.sum() / 60
    assert wasted == pytest.approx(105, rel=0.03)


def findings(**settings: object) -> GoodputFindings:
    asked = {
        f"goodput.{key.replace('__', '.')}": value for key, value in settings.items()
    }
    scenario = load_scenario(FILE).replace({"goodput.seeds": 4, **asked})
    result = nestsim.goodput(scenario.replace({"goodput.duration": "54 d"})).result
    assert result.findings is not None
    return result.findings


def test_memory_of_peers_saves_what_is_lost_between_checkpoints() -> None:
    plain = findings()
    run = findings(checkpoint__peers={})
    peers = run.habits.peers
    assert peers is not None
    assert peers.interval == 6.72
    part = run.checkpoint.size / 2048
    assert peers.write == pytest.approx(part / 50e9)
    assert peers.read == pytest.approx(part / 50e9 + run.checkpoint.copy)
    assert run.cycle.memory_loss == 0.0
    assert run.shares()["lost work"].mean < 0.03 * plain.shares()["lost work"].mean
    name = "checkpoints in the memory of peers"
    assert run.without == {name: pytest.approx(plain.cycle.goodput(300.0), rel=1e-9)}


def test_racks_take_the_memory_of_neighbours() -> None:
    racks = [{"name": "rack power", "nodes": 16, "mtbf": "300 d"}]
    near, far = (
        findings(domains=racks, spares=500, checkpoint__peers={"replication_jump": n})
        for n in (1, 16)
    )
    assert near.kinds[-1].memory_loss == 1.0
    assert far.kinds[-1].memory_loss == far.cycle.memory_loss == 0.0
    assert near.memory_lost > 0.05
    assert far.memory_lost < 0.005
    assert near.goodput.mean < far.goodput.mean


def test_causes_have_repairs_and_restarts_of_their_own() -> None:
    plain = findings(spares=16)
    causes = [
        {"name": "device", "repair_time": "2 h"},
        {"name": "software", "warm_share": 1.0},
    ]
    run = findings(spares=16, causes=causes, hot_restart_time="30 s")
    assert run.spares_needed < plain.spares_needed
    assert run.shares()["restart"].mean < 0.5 * plain.shares()["restart"].mean
    assert list(run.without) == [
        "spare nodes with processes",
        "restarts in the same processes",
    ]


@failures.over(
    ("settings", "words"),
    [
        ({"checkpoint__peers": {"replication_factor": 3}}, "no whole groups"),
        ({"checkpoint__peers": {"interval": "1 s"}}, "shorter than a step"),
        (
            {"checkpoint__peers": {"interval": "1 h"}, "checkpoint__interval": "1 min"},
            "checkpoints in memory",
        ),
        ({"checkpoint__peers": {}, "elastic": "same-batch"}, "from the memory of all"),
        ({"causes": [{"name": "moon"}]}, "nothing that fails"),
        ({"causes": [{"name": "device", "warm_share": 0.5}]}, "takes out"),
        ({"causes": [{"name": "software", "repair_time": "1 h"}]}, "repairs what no"),
        ({"causes": [{"name": "device"}, {"name": "device"}]}, "twice"),
    ],
)
def test_habits_that_cannot_be_are_refused(
    settings: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        findings(**settings)


def test_the_report_says_what_each_habit_is_worth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        FILE.read_text(encoding="utf-8")
        + """
[goodput.checkpoint.peers]
stall = "10 ms"
replication_jump = 16

[goodput.slow]
share = 0.1
time = "2 h"
speed = 0.7
detection_time = "10 min"

[[goodput.causes]]
name = "device"
repair_time = "8 h"
"""
    )
    file = tmp_path / "job.toml"
    file.write_text(text, encoding="utf-8")
    assert main(["goodput", str(file), "--seeds", "2", "--duration", "54 d"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for words in (
        "checkpoints in memory 0.1",
        "slow nodes 0.",
        "16 nodes apart",
        "Without",
        "watching for slow nodes",
        "device 8 h",
    ):
        assert words in printed
