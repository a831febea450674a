"""The planner: a small network that turns an instruction into a DAG of typed subtasks.

Read `model.py` for the calls, `network.py` for the parameters, `loss.py` for what it learns by,
`decode.py` and `retrieval.py` for how plans are searched, `fit.py` for the training loop and
`saving.py` for checkpoints.
"""
