"""Studies: what was found out with this code. Each folder has its page, README.md."""
