# StarPO-S with GRPO on Repair: read a function, run tests, edit a line, submit; paid by the hidden tests that it mends.

env = "repair:reward=ratio"  # binary: for a whole repair only
estimator = "grpo"
max_turns = actions_per_traj = 8
actions_per_turn = 1
