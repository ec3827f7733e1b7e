"""How fast is whiten on a GPU beside PyTorch and sentence-transformers?"""
