# Extra settings for any experiment with several turns: ECHO (arXiv 2605.24517). The policy also
# learns to predict the observations.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/echo.py

observation_coef = 0.1
filter_keep = 1.0
