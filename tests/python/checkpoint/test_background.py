"""One save in the background; its error is told once, to whoever asks first."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from ringdp.checkpoint.background import Pending, join_latest, settle


def failing() -> Path:
    raise OSError("disk full")


def test_wait_gives_the_path():
    gate = threading.Event()
    pending = Pending(lambda: Path("here") if gate.wait(60) else Path("late"))
    assert not pending.done()
    gate.set()
    assert pending.wait() == Path("here")
    assert pending.done()
    settle()


def test_wait_raises_the_error_and_the_next_save_does_not_repeat_it():
    pending = Pending(failing)
    with pytest.raises(OSError, match="disk full"):
        pending.wait()
    settle()


def test_the_next_save_raises_what_nobody_has_seen():
    Pending(failing)
    join_latest()  # a load waits and leaves the error alone
    with pytest.raises(OSError, match="disk full"):
        settle()
    settle()


def test_the_next_save_waits():
    gate = threading.Event()
    pending = Pending(lambda: Path("x") if gate.wait(60) else Path("late"))
    threading.Timer(0.01, gate.set).start()
    settle()
    assert pending.done()


def test_an_interpreter_that_ends_waits_and_tells(run_python):
    code = (
        "import time\nfrom ringdp.checkpoint.background import Pending\n"
        "def fail():\n    time.sleep(0.2)\n    raise OSError('disk full')\nPending(fail)"
    )
    result = run_python(code)
    assert "the last save in the background failed: disk full" in result.stderr
