# Overlay: pays for thoughts that state the board truly; tests finding 6 of arXiv 2504.20073, that reasoning fades
# without a reward of its own. Launch:
#   torchrun --standalone train.py config/frozenlake_ppo.py config/think_reward.py --out_dir=out/think_reward

think_reward = 0.1
