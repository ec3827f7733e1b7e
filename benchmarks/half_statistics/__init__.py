"""How much accuracy does layer normalisation lose if its statistics are in float16?"""
