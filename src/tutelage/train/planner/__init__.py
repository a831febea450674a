"""`tutelage train planner`: the two phases in a run folder.

`setup.py` says what a run is asked for and reads its data, `job.py` runs it and goes on with one
that was stopped, `results.py` measures, `pages.py` draws the report. The learning itself is in
`tutelage.orchestration`.
"""
