"""Shows a self-test while it runs - a table that fills up in a terminal (rich), plain lines elsewhere - and its end."""

from __future__ import annotations

import time
from typing import Any, Protocol

from ringdp.selftest.results import MARKS, NOT_RUN, Results
from ringdp.selftest.session import Event
from ringdp.text.table import columns, rich_table
from ringdp.text.terminal import in_terminal
from ringdp.text.units import counted

_SHOWN_FAILURES = 20
_REDRAW_S = 0.25


class Display(Protocol):
    """A context manager that is shown every event after it has been added to the results."""

    def __enter__(self) -> Display: ...
    def __exit__(self, *exception: object) -> None: ...
    def show(self, event: Event) -> None:
        """Shows an event."""


def display_for(results: Results, quiet: bool) -> Display:
    """The display that suits standard output; none when quiet."""
    if quiet:
        return Silent()
    if in_terminal():
        return Live(results)
    return Plain(results)


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def show(self, event: Event) -> None:
        """Nothing."""


class Plain(Silent):
    """A line per op and transport as it begins."""

    def __init__(self, results: Results) -> None:
        self._tally = results
        self._current: tuple[str, str] | None = None

    def show(self, event: Event) -> None:
        """Prints a line when rank 0 begins another op."""
        if event.case is None or event.rank != 0:
            return
        cases = self._tally.cases
        now = (event.transport, cases[event.case].op)
        if now != self._current:
            self._current = now
            print(f"{now[0]:<4} {event.case:>5}/{len(cases)}  {now[1]}", flush=True)


class Live:
    """The table, filling up."""

    def __init__(self, results: Results) -> None:
        from rich import live

        self._tally = results
        self._live = live.Live(self._drawn(), auto_refresh=False, transient=True)
        self._next = 0.0

    def __enter__(self) -> Live:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def show(self, event: Event) -> None:
        """Redraws when it is time."""
        if time.monotonic() >= self._next:
            self._live.update(self._drawn(), refresh=True)
            self._next = time.monotonic() + _REDRAW_S

    def _drawn(self) -> Any:
        return rich_table(f"ringdp selftest, {counted(self._tally.size, 'rank')}", *self._tally.table())


def summary(results: Results, seconds: float) -> str:
    """The table, what its marks mean, the failures, and the totals as the last line."""
    header, rows = results.table()
    lines = columns([header, *rows])
    lines.append("✓ equal to the serial oracle, bit for bit   - refused, as it must be   ✗ wrong   · not run")
    lines += [str(failure) for failure in results.failures[:_SHOWN_FAILURES]]
    if len(results.failures) > _SHOWN_FAILURES:
        lines.append(f"... and {len(results.failures) - _SHOWN_FAILURES} more: --json has all")
    counts = results.counts()
    totals = ", ".join(f"{counts[kind]} {kind}" for kind in MARKS if counts[kind] or kind != NOT_RUN)
    over = " and ".join(results.transports)
    return "\n".join([*lines, f"{totals}: {counted(results.size, 'rank')} over {over} in {seconds:.1f} s"])
