"""Measure speed and memory."""
