"""The exception that ends a rank, and where it is when asked."""

from __future__ import annotations

import ast
import time

CODE = """
import os, signal, sys
from pathlib import Path
from ringdp.tools.doctor.probes import errors
from ringdp.tools.doctor.probes.context import ProbeContext
errors.install(ProbeContext(lambda row: print(row, flush=True)), Path(sys.argv[1]))
def waiting():
    os.kill(os.getpid(), signal.SIGUSR1)
waiting()
import json
def reading():
    json.loads("[")
reading()
"""
SAID = "Expecting value: line 1 column 2 (char 1)"


def test_a_rank_s_error_is_written_down_and_shown_as_ever(run_warm, tmp_path):
    result = run_warm("-c", CODE, str(tmp_path), RANK="0")
    row = ast.literal_eval(result.stdout)
    assert (row["kind"], row["type"], row["message"]) == ("error", "JSONDecodeError", SAID)
    assert row["place"] == "<string>, line 12 in reading"  # and not json's own line
    assert 0 <= time.time() - row["time"] < 600
    assert f"JSONDecodeError: {SAID}" in result.stderr and result.returncode == 1
    (stack,) = tmp_path.glob("stack-*.txt")
    assert "in waiting" in stack.read_text()


def test_the_launcher_s_error_is_not(run_warm, tmp_path):
    result = run_warm("-c", CODE, str(tmp_path))
    assert result.stdout == "" and "JSONDecodeError" in result.stderr
