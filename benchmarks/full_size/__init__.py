"""How long does an export of a full-size network take, and how much memory?"""
