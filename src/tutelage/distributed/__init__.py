"""More processes than one: what implements protocols that `engine`, `rollouts` and `weights` own.

Nothing here is imported unless a configuration names it or a launcher has started ranks, so one
machine feels nothing of it. `ray_workers.py` has rollouts played by workers that Ray places;
`process_group.py` trains on the ranks of torch.distributed.
"""
