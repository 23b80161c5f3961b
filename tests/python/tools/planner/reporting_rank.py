"""A rank without torch: reports, fails, or sleeps, as its job's workload says."""

import json
import os
import sys
import time
from pathlib import Path

job = json.loads(sys.argv[2])
rank = int(os.environ["RANK"])
if job["workload"] == "fails" and rank == 1:
    sys.exit("no such luck")
if job["workload"] == "sleeps" or (job["workload"] == "fails" and rank == 0):
    time.sleep(60)
if rank == 0:
    names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
    Path(sys.argv[1]).write_text(json.dumps([{name: os.environ[name] for name in names}]))
