# Overlay behind frozenlake_ppo.py: small lakes for 50 iterations, then those of the flagship, which are scored.

env = "frozenlake:size=3,frozen_prob=0.8,success_rate=0.8 @50 > frozenlake:size=4,frozen_prob=0.8,success_rate=0.8"
