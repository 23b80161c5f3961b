"""Checks by subject: check(Evidence) yields findings; what it cannot judge is said in not_judged(Evidence)."""
