"""Everything around the algorithm: checkpoints, logs, collapse diagnostics, scores, reports."""
