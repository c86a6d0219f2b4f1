# Extra settings for quest_ppo.py: evaluation on quests as large as those in training, and on larger
# quests. Larger quests have more rooms (w), more objects (o) or more commands in the shortest
# solution (q).
# Example:  torchrun --standalone train.py config/quest_ppo.py config/envs/quest_transfer.py

eval_env = "quest:w=2,o=3,q=4,goal=full,show=none"
eval_env += " + quest:w=8,o=3,q=4,goal=full,show=none"
eval_env += " + quest:w=2,o=12,q=4,goal=full,show=none"
eval_env += " + quest:w=8,o=12,q=4,goal=full,show=none"
eval_env += " + quest:w=4,o=6,q=8,goal=full,show=none"
