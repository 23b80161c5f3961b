"""The processes of one or several candidates, told what to do by lines of JSON, and answering each in time."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

END_S = 5.0


class TeamLost(RuntimeError):
    """It cannot go on: a rank has ended, or does not answer; the sentence says why."""


class CandidateFailed(RuntimeError):
    """An error was the answer; the ranks wait for other orders."""


class Team:
    """`commands`: one per rank, each with its variables. They start at once; welcome() waits for them."""

    def __init__(self, name: str, commands: Sequence[Sequence[str]], variables: Sequence[Mapping[str, str]]) -> None:
        self.name, self._words = name, tempfile.TemporaryFile()
        self._answers: list[queue.Queue[str]] = []
        self._processes: list[subprocess.Popen[str]] = []
        for command, own in zip(commands, variables, strict=True):
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                env={**os.environ, **own},
                text=True,
                start_new_session=True,
            )
            lines: queue.Queue[str] = queue.Queue()
            threading.Thread(target=_read, args=(process, lines), daemon=True).start()
            self._processes.append(process)
            self._answers.append(lines)

    def welcome(self, limit_s: float) -> list[str]:
        """The names of its candidates, once all ranks are ready."""
        return self._gather(time.monotonic() + limit_s, "start")[0]["candidates"]

    def ask(self, limit_s: float, do: str, candidate: str, **order: Any) -> list[dict[str, Any]]:
        """All ranks' answers to one order. TeamLost when one has none in time, CandidateFailed when one is an error."""
        line = json.dumps({"do": do, "candidate": candidate, **order}) + "\n"
        try:
            for process in self._processes:
                process.stdin.write(line)  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
        except OSError:
            raise TeamLost(f"a rank has ended: {self.last_words()}") from None
        return self._gather(time.monotonic() + limit_s, f"{do} {candidate}")

    def _gather(self, deadline: float, what: str) -> list[dict[str, Any]]:
        found = []
        for rank, lines in enumerate(self._answers):
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TeamLost(f"rank {rank} did not answer to '{what}' in time; {self.last_words()}".strip()) from None
            if not line:
                raise TeamLost(f"rank {rank} has ended: {self.last_words()}")
            found.append(json.loads(line))
        errors = [answer["error"] for answer in found if "error" in answer]
        if errors:
            raise CandidateFailed(errors[0])
        return found

    def last_words(self) -> str:
        """The last line that any rank has written to stderr."""
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def dismiss(self) -> None:
        """Ends all its processes."""
        for process in self._processes:
            if process.stdin and not process.stdin.closed:
                try:
                    process.stdin.close()
                except OSError:
                    pass  # it has ended
        deadline = time.monotonic() + END_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.stdout:
                process.stdout.close()
        self._words.close()


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    """Puts answers into the queue, and an empty one at the end."""
    try:
        for line in process.stdout or ():
            lines.put(line)
    except ValueError:
        pass  # closed by dismiss()
    lines.put("")
