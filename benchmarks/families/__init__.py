"""How far is each model of the catalogue, exported in each precision, from PyTorch?"""
