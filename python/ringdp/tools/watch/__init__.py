"""`ringdp.watch`: checks that stay on for the life of a job, with a budget of half a percent of its time."""
