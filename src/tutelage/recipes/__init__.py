"""Recipes: the embedded jobs, made of the public parts as a user would make them."""
