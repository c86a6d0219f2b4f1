# StarPO-S with GRPO on CliffWalking of gymnasium: walk along a cliff to the target. All games start
# in the same cell. Install requirements/hubs.txt first, see docs/hubs.md.
# Launch:  torchrun --standalone train.py config/cliff_walking_grpo.py

env = "gymnasium:CliffWalking-v1"
estimator = "grpo"
reward_density = "sparse"  # natively, to write nothing valid costs less than a walk
max_turns = 5
actions_per_turn = 5
actions_per_traj = 25
sft_player = "planner"  # names as many moves as it may, so a game has three turns
sft_actions = 5
