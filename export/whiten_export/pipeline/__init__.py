"""Exports from end to end: recipe, plan, and the steps that write a bundle."""
