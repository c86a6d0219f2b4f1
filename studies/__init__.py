"""Experiments with this code. The README.md of each study has its results."""
