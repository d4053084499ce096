"""Small systems without stages or devices, at random and by hand."""

import numpy as np
from hypothesis import strategies as st

from nestsim.simulator.system import (
    CLOSES,
    NONE,
    OPENS,
    TICK,
    WHOLE,
    Incidence,
    Step,
    Steps,
    System,
    quantise,
)

RECORDS = ("span_starts", "span_ends", "posts", "departures", "arrivals")


class Builder:
    """Writes programs by playing them one operation after another.

    What can be played in some order cannot wait for ever in any other.
    """

    def __init__(self, num_actors, channels):
        """Take channels as (senders, latency, bytes, {link: weight})."""
        self.channels = channels
        self.programs = [[] for _ in range(num_actors)]
        self.posted = [0] * len(channels)
        self.posts = [0] * len(channels)

    def step(self, actor, duration, *, source=NONE, lag=0, target=NONE, span=WHOLE):
        """Wait for all messages but the last ``lag`` posted so far, work, post."""
        need = max(0, self.posted[source] - lag) if source != NONE else 0
        step = Step(float(quantise(duration, TICK)), source, need, target, span)
        self.programs[actor].append(step)
        if target != NONE:
            self.posts[target] += 1
            num_senders = len(self.channels[target][0])
            self.posted[target] = self.posts[target] // num_senders

    def gather(self, channel, duration):
        """Let all senders post, and wait for each other."""
        senders = self.channels[channel][0]
        for actor in senders:
            self.step(actor, duration, target=channel, span=OPENS)
        for actor in senders:
            self.step(actor, 0.0, source=channel, span=CLOSES)

    def system(self, capacity, *, num_recorded=1):
        """Return it all; a slot for each channel in each program."""
        num_actors, num_channels = len(self.programs), len(self.channels)
        weights = np.zeros((num_channels, len(capacity)))
        for c, (_, _, _, links) in enumerate(self.channels):
            weights[c, list(links)] = list(links.values())
        flows, links = map(np.ascontiguousarray, np.nonzero(weights))
        counts = np.bincount(flows, minlength=num_channels)
        return System(
            programs=tuple(Steps.of(steps) for steps in self.programs),
            program=np.arange(num_actors),
            ports=np.tile(np.arange(num_channels), (num_actors, 1)),
            num_sources=np.array([len(c[0]) for c in self.channels], np.int64),
            latency=quantise(np.array([c[1] for c in self.channels]), TICK),
            num_bytes=np.array([float(c[2]) for c in self.channels]),
            incidence=Incidence(
                np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
                links.astype(np.int64),
                weights[flows, links],
            ),
            capacity=np.array(capacity, dtype=np.float64),
            tick=TICK,
            num_recorded=num_recorded,
        )


def wire(sender, *, latency=0.0, num_bytes=0, links=None):
    """Describe a channel with one sender."""
    return ((sender,), latency, num_bytes, links or {})


def meeting(senders, *, latency=0.0, num_bytes=0, links=None):
    """Describe a channel with several senders."""
    return (tuple(senders), latency, num_bytes, links or {})


durations = st.sampled_from([0.0, 0.0, 0.125, 0.25, 0.3, 1 / 3, 0.7])
latencies = st.sampled_from([0.0, 0.0, 0.01, 0.3, 2.5])
sizes = st.sampled_from([0.0, 1e-13, 0.1, 0.5, 1.0, 2.3])


@st.composite
def _operations(draw, num_actors, channels, most):
    """Draw what a loop's body, or what comes before or after it, consists of."""
    found = []
    for _ in range(draw(st.integers(0, most))):
        kind = draw(st.sampled_from(["work", "send", "receive", "both", "gather"]))
        actor = draw(st.integers(0, num_actors - 1))
        wires = [c for c, one in enumerate(channels) if len(one[0]) == 1]
        meetings = [c for c, one in enumerate(channels) if len(one[0]) > 1]
        source, target = NONE, NONE
        if kind == "gather" and meetings:
            found.append((draw(st.sampled_from(meetings)), draw(durations)))
            continue
        if kind in {"send", "both"} and wires:
            target = draw(st.sampled_from(wires))
            (actor,) = channels[target][0]
        if kind in {"receive", "both"}:
            source = draw(st.integers(0, len(channels) - 1))
        lag, span = draw(st.integers(0, 3)), draw(st.sampled_from([WHOLE, WHOLE, 0]))
        found.append((actor, draw(durations), source, lag, target, span))
    return found


def _play(builder, operations):
    for operation in operations:
        if len(operation) == 2:
            builder.gather(*operation)
            continue
        actor, duration, source, lag, target, span = operation
        builder.step(actor, duration, source=source, lag=lag, target=target, span=span)


@st.composite
def random_systems(draw, *, most_rounds=14):
    """Draw actors that repeat something over channels on shared links."""
    num_actors = draw(st.integers(1, 4))
    num_links = draw(st.integers(1, 3))
    links = st.dictionaries(
        st.integers(0, num_links - 1), st.sampled_from([1.0, 2.0, 3.0]), max_size=2
    )
    senders = st.lists(
        st.integers(0, num_actors - 1),
        min_size=1,
        max_size=draw(st.integers(1, num_actors)),
        unique=True,
    ).map(tuple)
    channel = st.tuples(senders, latencies, sizes, links)
    channels = draw(st.lists(channel, min_size=1, max_size=5))
    builder = Builder(num_actors, channels)
    _play(builder, draw(_operations(num_actors, channels, 3)))
    body = draw(_operations(num_actors, channels, 6))
    for _ in range(draw(st.integers(1, most_rounds))):
        _play(builder, body)
    _play(builder, draw(_operations(num_actors, channels, 3)))
    capacity = draw(
        st.lists(st.floats(0.5, 4.0), min_size=num_links, max_size=num_links)
    )
    return builder.system(capacity)


def assert_same(run, other):
    """Compare all moments and bytes of two runs bit for bit."""
    assert run.end == other.end
    for record in RECORDS:
        ours, theirs = getattr(run, record), getattr(other, record)
        assert [log.tolist() for log in ours] == [log.tolist() for log in theirs]
    assert run.bin_width == other.bin_width
    assert run.bins.tobytes() == other.bins.tobytes()


def num_events_in_all(run):
    """Return the events of a run, skipped ones included."""
    return run.num_events + sum(skip.num_events for skip in run.skips)
