"""What is said of a folded replay is what is said of the unfolded one."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from nestsim.features.run.figures import (
    level_rows,
    link_rows,
    links_title,
)
from nestsim.features.run.statistics import (
    bubble_fraction,
    hottest_links,
    level_uses,
    stage_breakdowns,
)
from nestsim.features.run.timeline import timeline_bars, timeline_windows
from nestsim.simulator.replay import replay
from nestsim.simulator.system import Replay
from nestsim.simulator.trace import write_chrome_trace
from nestsim.simulator.work import PipelineWork
from tests.nestsim.simulator.cases import contended_step, pipeline, replay_all
from tests.nestsim.simulator.folding_cases import grid, spine_leaf, steps
from topologies.network import Network


def both(net: Network, work: PipelineWork) -> tuple[Replay, Replay]:
    return replay(net, work), replay_all(net, work)


@settings(max_examples=25)
@given(step=steps())
def test_classes_weigh_as_much_as_their_members(
    step: tuple[Network, PipelineWork],
) -> None:
    folded, whole = both(*step)
    close = {"rel": 1e-9, "abs": 1e-12}
    assert bubble_fraction(folded) == pytest.approx(bubble_fraction(whole), **close)
    rows = zip(stage_breakdowns(folded), stage_breakdowns(whole), strict=True)
    for ours, theirs in rows:
        assert ours == pytest.approx(theirs, **close)
    for use, expected in zip(
        level_uses(folded, step[0]), level_uses(whole, step[0]), strict=True
    ):
        assert use[1:] == pytest.approx(expected[1:], **close)
    assert links_title(folded, step[0]) == links_title(whole, step[0])
    assert timeline_windows(folded) == timeline_windows(whole)


@settings(max_examples=25)
@given(step=steps())
def test_every_replica_has_the_bars_of_their_representatives(
    step: tuple[Network, PipelineWork],
) -> None:
    folded, whole = both(*step)
    for replica in range(folded.representative.shape[1]):
        ours, theirs = (timeline_bars(each, replica) for each in (folded, whole))
        found, expected = (
            sorted(zip(*(column.tolist() for column in bars), strict=True))
            for bars in (ours, theirs)
        )
        assert found == expected


def folded_and_whole() -> tuple[Network, Replay, Replay]:
    net = spine_leaf(4, oversubscription=2.0)
    work = pipeline(
        grid(range(128), (4, 4, 8), "data inside"),
        3,
        forward_time=[1e-2] * 4,
        backward_time=[2e-2] * 4,
        boundary_bytes=[1e8] * 3,
    )
    return net, *both(net, work)


def test_links_of_a_class_share_a_row_and_are_counted() -> None:
    net, folded, whole = folded_and_whole()
    assert hottest_links(folded, net) == hottest_links(whole, net)
    rows = link_rows(folded, net)
    assert any(name.endswith("(x32)") for name in rows.names)
    ours, theirs = level_rows(folded, net), level_rows(whole, net)
    assert ours.names == theirs.names
    np.testing.assert_allclose(ours.utilisation, theirs.utilisation, rtol=1e-9)


def test_the_trace_shows_one_of_each_class_and_says_for_how_many(
    tmp_path: Path,
) -> None:
    _, folded, _ = folded_and_whole()
    path = tmp_path / "trace.json"
    write_chrome_trace(folded, path)
    document = json.loads(path.read_text(encoding="utf-8"))
    left_out = document["otherData"]["left_out"]
    assert left_out == "12 stages of replicas that are alike to others"
    events = document["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert "compute, replica 0 and 3 alike" in names
    assert not any("replica 1" in name for name in names)
    passes = [e for e in events if e.get("cat") == "forward"]
    assert len(passes) == 4 * 3
    # Three boundaries, both ways, three microbatches.
    assert sum(e["ph"] == "f" for e in events) == 3 * 2 * 3


def test_arrows_lead_to_the_pass_of_the_receivers_representative(
    tmp_path: Path,
) -> None:
    net, work = contended_step(num_replicas=6)
    folded, whole = both(net, work)
    assert 1 < folded.num_classes < folded.num_actors
    arrows = []
    for each in (folded, whole):
        path = tmp_path / "trace.json"
        write_chrome_trace(each, path)
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        arrows.append(sum(e["ph"] == "f" for e in events))
    sent = folded.transfers.replica >= 0
    assert arrows[0] == sent.sum()
    assert arrows[1] == folded.transfer_multiplicity[sent].sum()
