"""ringdp/doctor/probes/rig.py: sums of one step start anew with the next."""

from __future__ import annotations

from ringdp.doctor.probes.rig import Rig


def test_a_step_takes_its_sums_with_it():
    rig = Rig(lambda row: None)
    rig.data, rig.called, rig.buffers, rig.samples, rig.backwards = 1.0, 2.0, 2.5, 3, 4
    began = rig.began
    rig.next_step()
    assert (rig.step, rig.data, rig.called, rig.buffers, rig.samples, rig.backwards) == (1, 0.0, 0.0, 0.0, 0, 0)
    assert rig.began > began
