"""The four ways in which gradients can travel, side by side."""
