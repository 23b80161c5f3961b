"""Measures on this machine where one way of doing a collective takes over from another, and remembers it."""
