"""Routing: rule-based and learned selection of the worker for each try at a node.

`contract.py` defines the router protocol and `router.py` the trained router. For training, see
`predictor.py` (expected accuracy, cost and time of workers), `simulator.py` (simulated workflows),
`policy.py` (the model, its loss and the baselines) and `phase2.py` (the training loop).
"""
