# StarPO-S with GRPO on Repair: read a function, run tests, edit a line, submit; paid by the hidden tests that it mends.
# Launch:  torchrun --standalone train.py config/repair_grpo.py
# --env=repair:reward=binary pays for a whole repair only

env = "repair:reward=ratio"
estimator = "grpo"
max_turns = actions_per_traj = 8
actions_per_turn = 1
