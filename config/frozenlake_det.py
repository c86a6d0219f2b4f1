# Overlay behind frozenlake_ppo.py: no slip and fewer holes, the setting of the main table of RAGEN-2.

env = "frozenlake:size=4,frozen_prob=0.9,success_rate=1.0"
