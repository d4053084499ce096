"""Users read what was done once on a machine, with the time that it took."""

import time

import pytest

from topologies.notices import Notices


@pytest.fixture
def clock(monkeypatch):
    """Make a clock that stands still until it is moved."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_the_listener_hears_beginnings_and_ends(clock):
    heard = []
    notices = Notices(listener=heard.append)
    with notices.once("compiling kernels"):
        clock[0] += 3.0
    with notices.once("compiling kernels"):
        clock[0] += 4.0
    assert heard == [
        "compiling kernels, once: 0 s",
        "",
        "compiling kernels, once: 3 s",
        "",
    ]
    assert notices.sentences(1.0) == ["compiling kernels, once: 7 s"]
    assert notices.sentences(0.0) == []


def test_what_is_done_inside_counts_once(clock):
    notices = Notices()
    with notices.once("compiling kernels"):
        clock[0] += 1.0
        with notices.once("compiling kernels"):
            clock[0] += 2.0
    assert notices.sentences(0.0) == ["compiling kernels, once: 3 s"]
    assert notices.counts == {}


def test_short_work_is_not_noted_and_problems_always_are(clock):
    notices = Notices()
    with notices.once("tracing the model"):
        clock[0] += 0.5
    notices.cannot_keep("traces of models", "/x: Read-only")
    assert notices.sentences(1.0) == [
        "traces of models cannot be kept for the next command: /x: Read-only"
    ]


def test_an_interruption_ends_it(clock):
    heard = []
    notices = Notices(listener=heard.append)

    def interrupted():
        with notices.once("compiling kernels"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert heard[-1] == ""
    with notices.once("tracing the model"):
        clock[0] += 1.0
    assert heard[-2] == "tracing the model, once: 0 s"
