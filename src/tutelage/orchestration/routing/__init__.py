"""Routing: which worker tries a node next, by rule or learned, and how well that goes.

`contract.py` says what a router is, `router.py` has the trained one. Of what it learns in, read
`predictor.py` (what is expected of workers), `simulator.py` (workflows, and what an action does)
and `policy.py` (the model, its loss, and the rules that it is compared with); `phase2.py` trains.
"""
