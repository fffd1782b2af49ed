"""Benchmarks: ratios against a floor measured in the same run. See README.md."""
