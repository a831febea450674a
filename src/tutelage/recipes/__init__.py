"""Recipes: the embedded jobs, built of public parts."""
