"""Helpers without knowledge of the algorithm: files, threads, time limits, model folders."""
