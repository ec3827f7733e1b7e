"""How much longer does an evaluation take than embedding its sentences?"""
