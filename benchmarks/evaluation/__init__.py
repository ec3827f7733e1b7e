"""How does whitening change the scores of similarity and classification tasks?"""
