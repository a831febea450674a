"""What turns rewards into a better prompt or better weights: one folder per way of learning.

`rl/` holds the mathematics of reinforcement learning (advantages, losses, KL) as pure functions;
`sft/` supervised rows and their loss; `prompt/` searches over prompts. Nothing is imported here, so
that a prompt search never loads torch. What calls these functions in a loop is `weights/`.
"""
