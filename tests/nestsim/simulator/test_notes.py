"""What a replay says of itself: how long it will take, and what it left out."""

from nestsim.simulator.replay import replay, run_system
from nestsim.simulator.system import ReplaySettings
from tests import failures
from tests.nestsim.simulator.cases import full_mesh, pipeline


def equal_stages(num_microbatches=64):
    """Two replicas of four equal stages, nothing in anybody's way."""
    devices = [[[2 * s], [2 * s + 1]] for s in range(4)]
    work = pipeline(devices, num_microbatches, boundary_bytes=[1e6] * 3)
    return full_mesh(8), work


def skip_sentences(result):
    return [sentence for sentence in result.notes if "repeated" in sentence]


def test_skipped_periods_are_said_with_the_passes_and_events_they_saved():
    net, work = equal_stages()
    skipped = replay(net, work)
    whole = replay(net, work, ReplaySettings(skipping=False))
    (sentence,) = skip_sentences(skipped)
    saved = whole.num_events - skipped.num_events
    assert f"{skipped.num_skipped:,} passes and {saved:,} events" in sentence
    assert 0 < skipped.num_skipped < skipped.num_classes * 2 * 64


def test_nothing_is_said_of_skipping_where_nothing_was_skipped():
    net, work = equal_stages()
    assert not skip_sentences(replay(net, work, ReplaySettings(skipping=False)))
    assert not skip_sentences(replay(*equal_stages(num_microbatches=1)))


@failures.over("skipping", [True, False])
def test_a_long_replay_says_so_before_it_starts(monkeypatch, skipping):
    said = []

    def run(system, settings):
        said.append("started")
        return run_system(system, settings)

    monkeypatch.setattr("nestsim.simulator.replay.run_system", run)
    monkeypatch.setattr(
        "nestsim.simulator.replay.forecast_seconds",
        lambda system: {"simpy": 31.2, "compiled": 6.9},
    )
    replay(
        *equal_stages(),
        ReplaySettings(skipping=skipping, engine="compiled"),
        progress=lambda doing, _: said.append(doing),
    )
    unless = ", less if its state repeats" if skipping else ""
    assert said == [f"about 7 s{unless}", "started"]


def test_a_short_replay_does_not_say_how_long_it_takes():
    said = []
    replay(*equal_stages(), progress=lambda doing, _: said.append(doing))
    assert not said
