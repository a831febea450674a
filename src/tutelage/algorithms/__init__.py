"""The mathematics of reinforcement learning, which weights and orchestration share.

`rl/` holds advantages, losses and KL as pure functions. Nothing is imported here, so that a prompt
search never loads torch. What calls these functions in a loop is `weights/`.
"""
