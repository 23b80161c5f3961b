"""The data feed: which samples each rank draws, and what is wrong with them. `ringdp.audit`, and `ringdp audit`."""
