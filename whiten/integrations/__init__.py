"""Use a bundle in other frameworks: one module for each, which needs that framework and nothing else.

Every class and function takes the bundle's directory, or an open `Encoder`, which may have other threads or providers.
"""
