# StarPO-S with GRPO on CliffWalking of gymnasium. Every game has the same map and the same start.
# Install requirements/hubs.txt first (docs/hubs.md).
# Launch:  torchrun --standalone train.py config/cliff_walking_grpo.py

env = "gymnasium:CliffWalking-v1"
estimator = "grpo"
# With the default reward_density, "native", a step costs 1. A reply without an action costs only
# 0.1 (format_penalty). So a policy could earn more by moving less.
reward_density = "sparse"
max_turns = 5
actions_per_turn = 5
actions_per_traj = 25
