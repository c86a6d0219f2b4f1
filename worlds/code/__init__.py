"""Programs to repair: small ones, and projects of SWE-Gym in a sandbox."""
