"""How long does it take to fit a whitening on ten million vectors, and how much memory?"""
