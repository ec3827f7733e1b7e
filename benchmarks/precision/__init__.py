"""How fast are bundles of float32, float16 and int8 beside each other?"""
