"""Plans: a DAG of subtasks, the catalog of tools that they keep to, and their drawing."""
