"""What a run needs around the algorithm: checkpoints, logs, collapse diagnostics, reports."""
