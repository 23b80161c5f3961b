"""Signals: at once outside a deferred block, remembered inside, and only the first one counts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from ringdp.examples.interrupt import Interrupt


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    installed = Interrupt()
    installed.install()
    yield installed
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_with_the_usual_status(interrupt, number):
    with pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), number)
    assert ended.value.code == 128 + number


def test_a_deferred_signal_is_remembered(interrupt):
    with interrupt.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.number == signal.SIGTERM


def test_a_second_signal_does_not_break_the_clean_end(interrupt):
    with pytest.raises(SystemExit):
        os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    assert interrupt.number == signal.SIGTERM
