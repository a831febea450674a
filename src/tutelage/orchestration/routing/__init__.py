"""Routing: which worker tries a node next, by rule or learned, and how well that goes.

`contract.py` says what a router is, `router.py` has the trained one. Of what it learns in, read
`workflows.py` (what is run), `simulator.py` (what an action does), `decisions.py` (what is known
before one), `policy.py` (the model and its loss), then `choosers.py` and `learning.py`;
`phase2.py` trains.
"""
