"""Commands that stand before a job's own one on every host: ranks in the launcher's place, and how these meet."""
