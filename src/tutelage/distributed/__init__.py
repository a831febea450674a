"""Training on several processes, with the protocols of `engine`, `rollouts` and `weights`.

Nothing here is imported unless a configuration needs it or a launcher has started ranks.
`ray_workers.py` plays rollouts on Ray workers; `process_group.py` trains on the ranks of
torch.distributed.
"""
