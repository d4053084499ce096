"""Which signals a process hears, and which it puts off."""

import os
import signal
import sys
import threading
from importlib.machinery import ExtensionFileLoader
from types import SimpleNamespace
from typing import Any

import pytest

from nestsim.running import interruption
from nestsim.running.interruption import (
    SIGNALS,
    Stop,
    StoppedError,
    deferred_signals,
    stoppable,
    unheard_by_children,
)


class Now(threading.Timer):
    """A timer that does not wait."""

    def start(self) -> None:
        assert self.daemon
        assert 0 < self.interval < 1
        self.function(*self.args)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Processes and signals that were sent to them."""
    kills: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *pair: kills.append(pair))
    monkeypatch.setattr(interruption.threading, "Timer", Now)
    return kills


def frame(name: str, loader: object, back: object = None) -> Any:
    """What Python is doing when a signal comes."""
    code = SimpleNamespace(co_filename=name)
    return SimpleNamespace(f_code=code, f_locals={"self": loader}, f_back=back)


def test_a_second_signal_counts_after_two_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop, now = Stop(), [0.0]
    monkeypatch.setattr(interruption.time, "monotonic", lambda: now[0])
    for moment, is_heard in (
        *((0.0, True), (0.5, False), (1.999, False), (2.0, True)),
        *((3.0, False), (3.999, False), (4.5, True), (6.5, True)),
    ):
        now[0] = moment
        try:
            stop(signal.SIGTERM if moment == 0.0 else signal.SIGINT)
        except StoppedError:
            assert is_heard, moment
        else:
            assert not is_heard, moment
    assert stop.received == signal.SIGTERM


def test_a_signal_waits_while_a_library_is_loaded(sent: list[tuple[int, int]]) -> None:
    bootstrap = "<frozen importlib._bootstrap_external>"
    loader = ExtensionFileLoader("library", "library.so")
    loading = frame("numpy.py", None, frame(bootstrap, loader, frame("a.py", None)))
    stop = Stop()
    stop(signal.SIGTERM, loading)
    assert (sent, stop.received) == ([(os.getpid(), signal.SIGTERM)], signal.SIGTERM)
    stop(signal.SIGINT, loading)  # the first one is sent again
    assert sent == [(os.getpid(), signal.SIGTERM)] * 2
    for other in (frame("a.py", loader), frame(bootstrap, None), None):
        with pytest.raises(StoppedError):
            Stop()(signal.SIGINT, other)
    assert len(sent) == 2


@pytest.mark.parametrize("received", [None, signal.SIGHUP])
@pytest.mark.parametrize("error", [StoppedError(), KeyboardInterrupt(), None])
def test_what_a_signal_raised_and_nothing_else_is_raised_again(
    received: int | None, error: BaseException | None, sent: list[tuple[int, int]]
) -> None:
    stop = Stop()
    stop.received = received
    again = stop.hear_again(SimpleNamespace(exc_value=error))  # type: ignore[arg-type]
    assert again == (received is not None and isinstance(error, StoppedError))
    assert sent == ([(os.getpid(), received)] if again else [])


@pytest.mark.parametrize("at_exit", [False, True])
@pytest.mark.parametrize("received", [None, signal.SIGTERM])
def test_hooks_and_handlers_are_put_back(
    at_exit: bool, received: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook(lost: object) -> None:
        assert lost

    before = {number: signal.getsignal(number) for number in SIGNALS}
    monkeypatch.setattr(threading, "excepthook", hook)
    monkeypatch.setattr(sys, "unraisablehook", hook)
    try:
        with stoppable(at_exit=at_exit) as stop:
            assert {signal.getsignal(number) for number in SIGNALS} == {stop}
            stop.received = received
        after = {number: signal.getsignal(number) for number in SIGNALS}
        assert after == (dict.fromkeys(SIGNALS, signal.SIG_IGN) if at_exit else before)
        assert sys.unraisablehook is hook
        stays_silent = at_exit and received is not None
        assert (threading.excepthook is hook) == (not stays_silent)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_of_signals_put_off_the_first_is_heard_afterwards() -> None:
    def work(stop: Stop) -> None:
        with deferred_signals():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            assert stop.received is None

    with stoppable() as stop:
        with pytest.raises(KeyboardInterrupt):
            work(stop)
        assert stop.received == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is stop
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with deferred_signals():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            assert not heard
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_processes_start_with_signals_that_wait() -> None:
    before, options = signal.pthread_sigmask(signal.SIG_BLOCK, ()), [*sys.warnoptions]
    with unheard_by_children():
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before | set(SIGNALS)
        assert len(sys.warnoptions) == len(options) + 1
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert sys.warnoptions == options


def test_another_thread_leaves_signals_to_the_main_one() -> None:
    handlers = []

    def work() -> None:
        with stoppable(), deferred_signals():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]


@pytest.mark.parametrize("received", [None, signal.SIGTERM])
@pytest.mark.parametrize("error", [StoppedError(), KeyError("else")])
def test_what_is_no_stop_of_ours_goes_to_the_hooks_of_before(
    received: int | None,
    error: BaseException,
    sent: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: heard.append("lost"))
    monkeypatch.setattr(threading, "excepthook", lambda lost: heard.append("thread"))
    lost = SimpleNamespace(exc_value=error)
    with stoppable() as stop:
        stop.received = received
        sys.unraisablehook(lost)  # type: ignore[arg-type]
        threading.excepthook(lost)  # type: ignore[arg-type]
    is_ours = received is not None and isinstance(error, StoppedError)
    assert heard == [*["lost"] * (not is_ours), *["thread"] * (received is None)]
    assert len(sent) == is_ours
