"""What training did, and why it was slow or wrong: traces, statistics, which rank made others wait, replicas."""
