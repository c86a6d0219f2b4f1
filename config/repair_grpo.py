# StarPO-S with GRPO on Repair. The agent reads a function, runs tests, edits lines and submits. The
# reward is the fraction of the failing hidden tests that its edits repair.
# Launch:  torchrun --standalone train.py config/repair_grpo.py

env = "repair:reward=ratio"  # reward=binary pays only for a full repair
estimator = "grpo"
max_turns = 8
actions_per_turn = 1
actions_per_traj = 8
