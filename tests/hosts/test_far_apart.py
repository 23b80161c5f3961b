"""Hosts that are far apart: what far.c makes of a link, and how many times a call crosses it.

tests/cpp/collective/round_trips_test.cc counts the trips of every plan without a clock.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from ringdp.tools.netns.far import FarNetwork, why_not_far
from ringdp.tools.netns.namespaces import ip

RTT_MS = 50.0
PORT = 4000
OWN = "import json, socket, sys, time\nown = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
BOUND = OWN + f"own.bind(('0.0.0.0', {PORT}))\nprint('bound', flush=True)\n"
ECHO = BOUND + "while True:\n    own.sendto(*own.recvfrom(2048)[:2])\n"
# The seconds until the answer to each of ten packets.
CALL = (
    OWN
    + """
seconds = []
for number in range(10):
    began = time.monotonic()
    own.sendto(b"here", (sys.argv[1], int(sys.argv[2])))
    own.recv(2048)
    seconds.append(time.monotonic() - began)
print(json.dumps(seconds))
"""
)
# Status 0 when something comes back within a second.
TRY = (
    OWN
    + """
own.settimeout(1)
own.sendto(b"here", (sys.argv[1], int(sys.argv[2])))
try:
    own.recv(2048)
except socket.timeout:
    sys.exit(1)
"""
)
# The numbers of the packets that have come, until there is silence, and the seconds between the first and the last.
HEAR = (
    BOUND
    + """
own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
numbers, times = [], []
try:
    while True:
        numbers.append(int.from_bytes(own.recv(2048)[:4], "big"))
        times.append(time.monotonic())
        own.settimeout(0.5)
except socket.timeout:
    print(json.dumps([numbers, times[-1] - times[0]]))
"""
)
# As many packets of so many bytes, as quickly as possible.
TELL = (
    OWN
    + """
for number in range(int(sys.argv[3])):
    own.sendto(number.to_bytes(4, "big").ljust(int(sys.argv[4]), b"."), (sys.argv[1], int(sys.argv[2])))
"""
)
PACKETS = 400


@pytest.fixture
def far():
    """FarNetwork, where this machine can make one."""
    if reason := why_not_far():
        pytest.skip(reason)
    return FarNetwork


def on(host, program, *arguments):
    """`program` on that host, once it has bound its socket if it does."""
    command = host.command([sys.executable, "-S", "-c", program, *map(str, arguments)])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    if program.startswith(BOUND):
        assert process.stdout.readline() == "bound\n"
    return process


def heard(network, size=100):
    """What the second host hears of PACKETS packets that the first one sends."""
    one, other = network.hosts
    with on(other, HEAR) as hears, on(one, TELL, other.address, PORT, PACKETS, size) as tells:
        assert tells.wait(60) == 0
        numbers, seconds = json.loads(hears.communicate(timeout=60)[0])
    return numbers, seconds, network.close()


def test_the_round_trip_is_the_one_asked_for(far):
    with far(2, rtt_ms=RTT_MS) as network:
        one, other = network.hosts
        with on(other, ECHO) as echo, on(one, CALL, other.address, PORT) as calls:
            seconds = json.loads(calls.communicate(timeout=60)[0])
            echo.kill()
    assert RTT_MS <= 1e3 * min(seconds) < RTT_MS + 10


@pytest.mark.parametrize("line", ["cut 3", "delay -1", "stop"])
def test_a_line_that_far_c_does_not_know_ends_it(far, line, capfd):
    """Its hosts' devices go with it, and the failure is not taken for silence."""
    with pytest.raises(RuntimeError, match="far.c has failed"), far(2, rtt_ms=2) as network:
        network._tell("delay 1")
        network._tell(line)
        network.close()
    assert f"far: {line}: Invalid argument" in capfd.readouterr().err
    assert network.hosts[0].namespace not in ip("netns", "list")


def test_a_host_is_cut_off_and_joined_again(far):
    """Both ways, and no other host."""
    with far(3, rtt_ms=2) as network:
        one, two, three = network.hosts
        for host, off, passes in ((three, True, True), (two, True, False), (two, False, True), (one, True, False)):
            network.cut(host, off)
            assert answers(one, two) == passes, (host, off)


def answers(caller, called):
    """Whether a packet comes back within a second."""
    with on(called, ECHO) as echo, on(caller, TRY, called.address, PORT) as tries:
        status = tries.wait(60)
        echo.kill()
    return status == 0


def test_the_same_packets_are_lost_in_every_run(far):
    losses = []
    for seed in (1, 1, 2):
        with far(2, rtt_ms=2, loss=0.1, seed=seed) as network:
            numbers, _, (sender, _) = heard(network)
        losses.append(set(range(PACKETS)) - set(numbers))
        assert (sender.sent, sender.lost, sender.dropped) == (PACKETS, len(losses[-1]), 0)
        assert numbers == sorted(numbers)
    assert losses[0] == losses[1] != losses[2]
    assert all(0.05 * PACKETS < len(lost) < 0.15 * PACKETS for lost in losses)


def test_packets_pass_at_the_rate_and_in_order_and_a_full_queue_drops_them(far):
    """10 Mb/s carry 1,000 bytes, 42 of headers among them, in 0.834 ms: 50 ms of queue hold 60 of them."""
    with far(2, rtt_ms=2, megabits=10, jitter_ms=3) as network:
        numbers, seconds, (sender, _) = heard(network, size=1000)
    assert numbers == sorted(numbers)
    assert sender.sent == PACKETS
    assert len(numbers) == PACKETS - sender.dropped
    assert seconds >= (len(numbers) - 1) * 1042 * 8 / 10e6 - 0.010


def trips(said, name):
    """From when the last rank called until the last one was through, in one-way trips; of the quickest call."""
    calls = zip(*(own["times"][name] for own in said), strict=True)
    return min(max(end for _, end in call) - max(begun for begun, _ in call) for call in calls) / (RTT_MS / 2e3)


@pytest.mark.parametrize("hosts", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_small_sum_takes_half_a_round_trip(make_far_job, hosts):
    said = make_far_job(hosts, rtt_ms=RTT_MS).run("paces")
    for own in said:
        assert own["wrong"] == []
        assert any(line.startswith("plan: exchange (") for line in own["described"]), own["described"]
    for name in ("all_reduce", "barrier", "broadcast", "all_gather"):
        assert 0.99 <= trips(said, name) < 1.6, name
    assert trips(said, "all_reduce, direct") >= 1.99


@pytest.mark.long
@pytest.mark.parametrize("hosts", [2, 3])
def test_nothing_false_is_said_of_a_bad_path(make_far_job, hosts):
    """Every collective, many in a row and one by one, with the settings as they are by default."""
    job = make_far_job(hosts, rtt_ms=200, loss=0.01)
    for own in job.run("many"):
        assert own["wrong"] == []
    for rank in range(hosts):
        said = [line for line in job.log_of(rank).splitlines() if line.startswith("[ringdp")]
        assert said == []
