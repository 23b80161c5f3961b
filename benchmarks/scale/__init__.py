"""What the algorithms of csrc/plan cost on many hosts: formulas, and a simulation of recorded plans."""
