# Overlay: the mask of the paper's own code, which trains on everything after the system message, observations and
# rewards included; what the "Echo Trap" looks like with it.
# Launch:  torchrun --standalone train.py config/frozenlake_ppo.py config/all_text.py --out_dir=out/all_text

mask_observations = False
