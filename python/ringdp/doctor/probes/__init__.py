"""What is looked at in a rank: one subject per file, each a function install(Probes)."""
