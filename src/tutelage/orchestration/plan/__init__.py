"""Plans: DAGs of subtasks, the catalog of their tools, and their arguments."""
