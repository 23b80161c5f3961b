"""Hosts in network namespaces of this machine, near each other or far apart: for examples, benchmarks and tests."""
