"""Users read what was done once on a machine, with the time that it took."""

import threading
import time

import pytest

from topologies.notices import Notices, gathered_notices, notices


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


def test_what_is_done_inside_counts_once(clock):
    notices = Notices()
    with notices.once("compiling kernels"):
        clock[0] += 1.0
        with notices.once("compiling kernels"):
            clock[0] += 2.0
    assert notices.sentences(0.0) == ["compiling kernels, once: 3 s"]


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


def test_notes_end_with_their_call_also_with_one_that_fails():
    def failing():
        with gathered_notices():
            notices().remark("of a call that fails")
            raise ValueError("no")

    notices().remark("of no call")
    with pytest.raises(ValueError, match="no"):
        failing()
    with gathered_notices() as gathered:
        notices().remark("of the next call")
    assert gathered.sentences(0.0) == ["of the next call"]


def test_a_call_inside_keeps_its_notes_and_has_the_same_listener():
    heard = []
    with gathered_notices() as outer:
        outer.listener = heard.append
        with gathered_notices() as inner, notices().once("compiling kernels"):
            notices().remark("inside")
        notices().remark("outside")
    assert (inner.sentences(9.0), outer.sentences(9.0)) == (["inside"], ["outside"])
    assert heard == ["compiling kernels, once: 0 s", ""]


def test_calls_in_threads_keep_their_notes_apart():
    both, found = threading.Barrier(2, timeout=60), {}

    def work(name):
        with gathered_notices() as gathered:
            both.wait()
            notices().remark(name)
            both.wait()
            found[name] = gathered.sentences(0.0)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"a": ["a"], "b": ["b"]}
