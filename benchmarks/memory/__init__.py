"""How much memory does a process that embeds texts use?"""
