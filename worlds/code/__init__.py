"""Environments where the policy repairs code: short functions, or SWE-Gym projects in a sandbox."""
