"""How much longer does it take to fit a whitening on sentences than to embed them?"""
