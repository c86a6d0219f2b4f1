# StarPO-S with PPO on the two-armed bandit: one turn, one action, and the arms must be told apart by their names.
# Launch:  torchrun --standalone train.py config/bandit_ppo.py
#
# 8 groups * 16 trajectories = 128 per iteration; 2 groups kept = 32 trajectories = one optimizer step

env = "bandit:pair=phoenix"
estimator = "gae"

# a trajectory is one reply with one action, so the reply may be longer than in the other environments
max_turns = 1
actions_per_turn = 1
actions_per_traj = 1
sft_actions = 1
max_response_tokens = 500
