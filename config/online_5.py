# Overlay: five optimizer steps on every rollout; the ratio is always against the policy that sampled.
# Launch:  torchrun --standalone train.py config/frozenlake_ppo.py config/online_5.py --out_dir=out/online_5
# 40 iterations * 5 passes over the 32 kept trajectories = 200 optimizer steps, as without it, on a fifth of the samples

num_epochs = 5
num_iterations = 40
