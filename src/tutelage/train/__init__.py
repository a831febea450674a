"""Training: a job's phases, its run folder, checkpoints and report.

Read `jobs.py` (what a job does), `phases.py` (the loops), `update.py` (one optimizer step),
`context.py` (records, clock, playing rollouts) and `checkpoint.py` (what a resume needs).
"""
