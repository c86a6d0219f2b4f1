"""Experiments with this code. Each folder has a page with the results, README.md."""
