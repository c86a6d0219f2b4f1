"""Environments, and modules that environments use."""
