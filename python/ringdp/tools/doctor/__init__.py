"""A short run of a user's script, watched in every rank, and what is wrong with it: `ringdp doctor`."""
