"""Choosing workers: the environment, what a policy sees of it, the policy, and what it is up
against.

Read `workflows.py` (what is run), `environment.py` (what an action does), `situation.py` (what is
known before one), `policy.py` (the model and its loss), then `baselines.py`. `phase2.py` trains,
`router.py` drives the executor.
"""
