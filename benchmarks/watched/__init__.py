"""What watching a training step costs."""
