"""The modules around the algorithm. A training step can be understood without them.

Before a run:     arguments, preflight, no_effect, quotes, mixtures
A run's folder:   run, run_folder, run_lock, checkpoint, checksums, settings_history, code_version
Its records:      records, log, tensorboard_log, wandb_log, json_shapes
What it measures: metrics, training_metrics, mutual_information, collapse_signs
What it prints:   terminal, report, scores, budget_warnings
Over many runs:   statistics, seed_groups
Helpers:          model_folder, loaded_model, precision, threads, time_limit
"""
