# Overlay behind any experiment: five optimizer steps on every rollout, ratios against the policy that sampled.
# 40 iterations * 5 passes over the 32 kept trajectories = 200 optimizer steps, as without it, on a fifth of the samples

num_epochs = 5
num_iterations = 40
