"""Every op, element type and reduce operation over several hosts, against the serial oracle of `ringdp selftest`."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(("hosts", "per_host"), [pytest.param(2, 1, marks=pytest.mark.long), (2, 2)])
def test_every_op_equals_the_oracle(make_job, hosts, per_host):
    for own in make_job(hosts, per_host).torchrun("selftest"):
        assert own["wrong"] == []
        assert own["cases"] > 1000
