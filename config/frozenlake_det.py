# Overlay: FrozenLake without slip and with fewer holes, the setting of the main table of RAGEN-2.
# Launch:  torchrun --standalone train.py config/frozenlake_ppo.py config/frozenlake_det.py --out_dir=out/frozenlake_det

env = "frozenlake:size=4,frozen_prob=0.9,success_rate=1.0"
