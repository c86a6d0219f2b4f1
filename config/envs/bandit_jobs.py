# Extra settings for bandit_grpo.py or bandit_ppo.py: training on twelve pairs of jobs. In each
# pair, the job that sounds risky is the better arm. Evaluation also uses pairs of other jobs, and
# one pair (trader) in which the job that sounds risky is the worse arm.
# Example:
#   python train.py config/bandit_grpo.py config/envs/bandit_jobs.py config/models/tiny.py

env = "bandit:pair=jobs"
eval_env = "bandit:pair=jobs + bandit:pair=jobs_test + bandit:pair=trader"
