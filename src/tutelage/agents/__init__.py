"""Agents: built-in loops over model calls and tools, functions, classes and outside programs.

Read `loop.py` for what the built-in ones share, then `tool_calling.py`, `react.py` and `code.py`.
"""
