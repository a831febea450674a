"""Training: a job's phases, its run folder, checkpoints and report.

Read `jobs.py` (what a job does), `rl.py` (the loop of reinforcement learning), `learner.py` (what a
step learns), `update.py` (the policy's optimizer steps), `sampling.py` (where rollouts come from),
`context.py` (records, clock, playing rollouts) and `checkpoint.py` (what a resume needs).
"""
