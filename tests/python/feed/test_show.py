"""ringdp/feed/show.py: the report in print."""

from __future__ import annotations

from play import epochs_of, judged, numbered, sharded, shuffled
from ringdp.feed.judge import judge
from ringdp.feed.show import show, verdict

DATA = numbered(64)


def test_the_table_the_findings_and_a_last_line(capsys):
    show(judged(lambda rank: epochs_of(shuffled(DATA, 0)), 2))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "data feed of 2 ranks"
    assert lines[2].split()[-8:] == ["1", "8", "128", "64", "64", "0", "0", "index"]
    assert any(line.startswith("PROBLEM duplicates: ") for line in lines)
    assert lines[-1].startswith("1 problem; writing it down took ")


def test_verdicts():
    clean = judged(lambda rank: epochs_of(sharded(DATA, rank, 2)), 2)
    assert verdict(clean).startswith("no problems; ")
    assert verdict(judge({})) == "nothing was judged"
