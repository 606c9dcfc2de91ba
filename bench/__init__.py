"""Benchmarks: ours and the bare floor in one run, printed as ratios."""
