"""Built-in agents: loops over model calls and tools. `tool_calling.py` is the one to read first."""
