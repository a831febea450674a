"""Prompt search as a product: agents that play, endpoints that are asked, a run folder, a report.

The search itself is `algorithms/prompt`, which knows an agent as a function `play` and an optimiser
LLM as a function `ask`. Here both are made of the real thing: `play.py` puts the rollout engine,
the gateway and the store behind the one, `endpoint.py` an OpenAI-compatible server behind the
other. `setup.py` puts a search together from its configuration, `job.py` runs it and goes on with
it, `pages.py` draws what came of it.
"""
