"""`ringdp.watch`: checks that stay on for the life of a job, for at most half a percent of its time."""
