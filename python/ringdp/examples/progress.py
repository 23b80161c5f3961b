"""Progress of the training, on rank 0: a live line in a terminal (rich), plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Any, Protocol

from ringdp.observe.run_history import History
from ringdp.text.terminal import in_terminal


class Progress(Protocol):
    """A context manager that is shown the history after every step."""

    def __enter__(self) -> Progress: ...
    def __exit__(self, *exception: object) -> None: ...
    def show(self, history: History) -> None:
        """One more step is done."""


def progress_for(rank: int, first: int, last: int, bytes_per_step: int) -> Progress:
    """What suits this rank and its standard output; bytes_per_step: over all ranks."""
    if rank != 0:
        return Silent()
    if in_terminal():
        return Live(first, last, bytes_per_step)
    return Plain(first, last, bytes_per_step)


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def show(self, history: History) -> None:
        """Nothing."""


class Pace:
    """Speed and time left, from the wall clock since it was made."""

    def __init__(self, first: int, last: int, bytes_per_step: int) -> None:
        self._first, self._last, self._bytes = first, last, bytes_per_step
        self._start = time.perf_counter()

    def line(self, history: History) -> str:
        """E.g. 'loss 2.1043  val 2.2010  8123 tokens/s  41 s left'."""
        step = len(history.losses)
        per_step = (time.perf_counter() - self._start) / max(1, step - self._first)
        validation = f"  val {history.validation[-1][1]:.4f}" if history.validation else ""
        speed = self._bytes / per_step
        left = per_step * (self._last - step)
        return f"loss {history.losses[-1]:.4f}{validation}  {speed:,.0f} tokens/s  {left:.0f} s left"


class Plain:
    """About twenty lines over the run."""

    def __init__(self, first: int, last: int, bytes_per_step: int) -> None:
        self._last, self._every = last, max(1, -(-(last - first) // 20))
        self._pace = Pace(first, last, bytes_per_step)

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def show(self, history: History) -> None:
        """A line when it is time for one."""
        step = len(history.losses)
        if step % self._every == 0 or step == self._last:
            print(f"step {step:>{len(str(self._last))}}/{self._last}  {self._pace.line(history)}", flush=True)


class Live:
    """One line that moves, by rich."""

    def __init__(self, first: int, last: int, bytes_per_step: int) -> None:
        from rich import progress

        self._pace = Pace(first, last, bytes_per_step)
        columns: list[Any] = [
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[line]}"),
        ]
        self._bar = progress.Progress("[bold]training", *columns)
        self._task = self._bar.add_task("train", total=last, completed=first, line="")

    def __enter__(self) -> Live:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def show(self, history: History) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=len(history.losses), line=self._pace.line(history))
