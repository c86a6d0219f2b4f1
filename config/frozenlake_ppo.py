# StarPO-S with PPO on slippery 4x4 FrozenLake, the main experiment.
# Launch:  torchrun --standalone train.py config/frozenlake_ppo.py
# On a laptop:  torchrun --standalone train.py config/frozenlake_ppo.py config/models/tiny.py

env = "frozenlake:size=4,frozen_prob=0.8,success_rate=0.8"  # 80 % of moves do not slip
estimator = "gae"  # PPO with a critic

# The settings of StarPO-S. All of them have their default values.
num_groups = 8  # boards per iteration
group_size = 16  # trajectories per board
filter_keep = 0.25  # train on the 2 groups whose scores vary most
batch_size = 32  # trajectories per optimizer step; the filter keeps 32, so there is one step
kl_coef = 0.0  # no KL term
num_iterations = 200
# PPO's clip range is asymmetric, as in DAPO: clip_low is 0.2 and clip_high is 0.28. With one step
# per iteration, PPO's ratio can leave this range only if engine and trainer round differently.
