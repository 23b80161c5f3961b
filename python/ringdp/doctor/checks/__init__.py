"""One check per file: check(Evidence) yields findings; what it cannot judge it says in not_judged(Evidence)."""
