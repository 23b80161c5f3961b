"""Writing down what the ranks of a user's script do, without a change to it: what `ringdp audit` and `doctor` share."""
