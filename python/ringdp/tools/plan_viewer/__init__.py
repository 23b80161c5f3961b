"""Recorded plans, played back step by step on small tensors: what `ringdp ring` and its page show.

No schedule is written here: plans come from the recorder (csrc/collective/inspect.h), and playing them follows their
own rounds, orders and barriers.
"""
