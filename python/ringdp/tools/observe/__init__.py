"""What training did, and why it was slow or wrong: traces of all ranks, statistics, who made others wait, replicas."""
