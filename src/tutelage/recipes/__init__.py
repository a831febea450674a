"""Recipes: the embedded jobs, built from public components."""
