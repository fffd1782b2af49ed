"""Benchmarks. Each result is a ratio to a baseline measured in the same run. See README.md."""
