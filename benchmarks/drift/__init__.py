"""Which drift do other texts cause than those that the whitening was fitted on?"""
