"""Agents: built-in loops over model calls and tools, functions, classes and external programs.

`loop.py` has the loop of the built-in ones, which are `tool_calling.py`, `react.py` and `code.py`.
"""
