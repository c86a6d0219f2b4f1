"""Experiments with this code. The README.md of each folder has the results."""
