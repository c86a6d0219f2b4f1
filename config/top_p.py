# Overlay: RAGEN-2's filter, the groups that hold 90 % of the in-group reward std of the batch, however many they are.
# Launch:  torchrun --standalone train.py config/sokoban_ppo.py config/top_p.py --out_dir=out/top_p

filter_strategy = "top_p"
filter_keep = 0.9
