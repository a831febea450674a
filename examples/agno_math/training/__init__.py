"""An Agno agent that solves math problems, trained three ways: its prompt, or its model's weights.

`train.py` is the command; read `agent.py` next, then `dataset.py`, `grader.py`, `database.py` and,
for the training of weights, `policy.py`. The search needs no other folder, so this one can be
copied anywhere; training weights takes its cold start from the example of the seven frameworks.
"""
