# StarPO-S with GRPO on CliffWalking of gymnasium. All games are the same.
# Install requirements/hubs.txt first (docs/hubs.md).
# Launch:  torchrun --standalone train.py config/cliff_walking_grpo.py

env = "gymnasium:CliffWalking-v1"
estimator = "grpo"
reward_density = "sparse"  # "native" takes 1 for a step, but only 0.1 for a reply without an action
max_turns = 5
actions_per_turn = 5
actions_per_traj = 25
