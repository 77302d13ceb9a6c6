"""Benches: speed beside raw clients, measured in the same run. `python -m tests.bench`."""
