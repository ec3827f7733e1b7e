"""How many tokens should one run of the graph have, and does it help to use several processes?"""
