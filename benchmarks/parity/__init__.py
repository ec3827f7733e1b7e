"""How far is each kind of bundle of all-MiniLM-L6-v2 from PyTorch, and how large is it?"""
