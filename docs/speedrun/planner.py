# SFT on games of the planner does the work. The rules want RL at the end, so a few iterations
# of PPO follow.
# Launch:  python -m tools.speedrun docs/speedrun/planner.py --track=frozenlake
#          python -m tools.speedrun docs/speedrun/planner.py --track=sokoban

title = "SFT on the planner"
tuning = "One run of seed 0 on each track with fewer SFT steps, scored with --split=heldout."

frozenlake = {
    "steps": [
        "tools.sft config/frozenlake_ppo.py config/tiny.py --sft_player=planner --sft_steps=500",
        "train.py config/frozenlake_ppo.py config/tiny.py config/tiny_best.py --learning_rate=1e-4",
    ],
    "checks": [0, 2, 4],
}
sokoban = {
    "steps": [
        "tools.sft config/sokoban_ppo.py config/tiny.py --sft_player=planner --sft_steps=150",
        "train.py config/sokoban_ppo.py config/tiny.py config/tiny_best.py --num_groups=16"
        " --format_penalty=-1.0 --learning_rate=1e-4",
    ],
    "checks": [0, 2, 4],
}
