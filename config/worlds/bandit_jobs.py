# Overlay for bandit_grpo.py or bandit_ppo.py: trains on twelve pairs of jobs, in which the job that
# sounds risky is the better arm. It evaluates on these pairs, on pairs of other jobs, and on a
# reversed pair, in which the better arm is the job that sounds safe.
# Example:
#   python train.py config/bandit_grpo.py config/worlds/bandit_jobs.py config/models/tiny.py

env = "bandit:pair=jobs"
eval_env = "bandit:pair=jobs + bandit:pair=jobs_test + bandit:pair=trader"
