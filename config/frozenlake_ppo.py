# StarPO-S with PPO on slippery 4x4 FrozenLake, the main experiment.
# Launch:  torchrun --standalone train.py config/frozenlake_ppo.py
# On a laptop:  torchrun --standalone train.py config/frozenlake_ppo.py config/models/tiny.py

env = "frozenlake:size=4,frozen_prob=0.8,success_rate=0.8"  # 80% of the moves go as intended
estimator = "gae"  # PPO with a critic

# StarPO-S and its scale. All of these are defaults of configurator.py.
num_groups = 8  # boards in an iteration
group_size = 16  # trajectories on each board, so an iteration samples 128
filter_keep = 0.25  # train on the 2 groups whose scores vary most, 32 trajectories
batch_size = 32  # trajectories per optimizer step, so an iteration makes one step
kl_coef = 0.0  # no KL term
num_iterations = 200
# The clip range is asymmetric, as in DAPO: clip_low is 0.2 and clip_high 0.28. With one step an
# iteration, it acts only on the mismatch of engine and trainer.
