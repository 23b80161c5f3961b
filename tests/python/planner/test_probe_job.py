"""ringdp/planner/probe_job.py: travels as JSON."""

import json
from dataclasses import asdict

from ringdp.planner.probe_job import ProbeJob


def test_a_job_survives_json():
    job = ProbeJob("mlp", 4, 3, (4096, 8192), bucket_mb=1.0, alone=False)
    told = json.loads(json.dumps(asdict(job)))
    assert ProbeJob(**{**told, "sizes": tuple(told["sizes"])}) == job
