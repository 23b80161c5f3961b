"""Every op, element type and reduce operation over several hosts, against the serial oracle of `ringdp selftest`."""

from __future__ import annotations

import pytest


@pytest.mark.long  # test_collectives has every collective; dtypes and operations are those of one host over TCP
@pytest.mark.parametrize(("hosts", "per_host"), [(2, 1), (2, 2)])
def test_every_op_equals_the_oracle(make_job, hosts, per_host):
    for own in make_job(hosts, per_host).run("selftest"):
        assert own["wrong"] == []
        assert own["cases"] > 1000
