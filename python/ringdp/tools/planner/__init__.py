"""Answers before a run: batch, memory, communication, step time and their limits; checked against measurement."""
