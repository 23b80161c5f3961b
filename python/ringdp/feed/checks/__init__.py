"""One check per file: a function of a Feed that yields findings, at most one per check and loader."""
