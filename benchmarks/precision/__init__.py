"""Compare the speed of float32, float16 and int8 bundles."""
