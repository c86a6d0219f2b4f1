# StarPO-S with GRPO on Repair: the agent reads a function, runs tests, edits lines and submits.
# Launch:  torchrun --standalone train.py config/repair_grpo.py

env = "repair:reward=ratio"  # pays (repaired - broken) / failing hidden tests, at least 0
estimator = "grpo"
max_turns = 8
actions_per_turn = 1
actions_per_traj = 8
