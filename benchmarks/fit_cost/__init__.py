"""Measure how much longer a fit takes than embedding the same sentences."""
