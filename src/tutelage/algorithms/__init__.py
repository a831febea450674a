"""The mathematics of reinforcement learning, used by weights and orchestration.

`rl/` has advantages, losses and KL as pure functions; `weights/` has the training loop that calls
them. Nothing is imported here, so that a prompt search never loads torch.
"""
