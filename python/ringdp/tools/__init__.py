"""The tools: planning before a run, auditing and diagnosing a job, pages, and tuning. The command is `ringdp.cli`."""
