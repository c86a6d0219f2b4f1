# Overlay behind frozenlake_ppo.py: the mask of the paper's own code, which trains on all text after the system message.

mask_observations = False
