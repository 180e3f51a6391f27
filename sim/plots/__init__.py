"""Figures from results: a sweep's frontier and latencies, a run's timeline."""
