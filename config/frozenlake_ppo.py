# StarPO-S with PPO on slippery 4x4 FrozenLake, the main experiment.
# Launch:  torchrun --standalone train.py config/frozenlake_ppo.py
# On a laptop:  torchrun --standalone train.py config/frozenlake_ppo.py config/models/tiny.py
#
# An iteration samples 8 groups * 16 trajectories = 128 trajectories.
# The filter keeps 25% of the groups: 2 * 16 = 32 trajectories = one optimizer step.
# 200 iterations sample 25,600 trajectories and make 200 optimizer steps.

env = "frozenlake:size=4,frozen_prob=0.8,success_rate=0.8"  # 80% of the moves go as intended
estimator = "gae"
