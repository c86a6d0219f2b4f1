# StarPO-S with PPO on FrozenLake, 4x4, slippery: the flagship experiment.
# Launch:         torchrun --standalone train.py config/frozenlake_ppo.py
# With overlays:  torchrun --standalone train.py config/frozenlake_ppo.py config/lora.py config/tiny.py --out_dir=out/a
# 8 groups * 16 trajectories = 128 trajectories per iteration
# the filter keeps 25% of the groups: 2 * 16 = 32 trajectories = one optimizer step of batch_size 32
# 200 iterations = 25,600 trajectories sampled, 200 optimizer steps; success_rate: a move goes as intended

env = "frozenlake:size=4,frozen_prob=0.8,success_rate=0.8"
estimator = "gae"
