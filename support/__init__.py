"""Modules that the commands need besides the algorithm, grouped by purpose.

Before a run:     terminal, arguments, preflight, no_effect
A run's folder:   run, run_folder, run_lock, checkpoint, settings_history
Its records:      records, log, tensorboard_log, wandb_log
What it measures: metrics, training_metrics, mutual_information, collapse_signs
What it prints:   report, scores, budget_warnings
Over many runs:   statistics, seed_groups
"""
