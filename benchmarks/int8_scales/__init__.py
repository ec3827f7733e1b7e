"""Which scales int8 chooses in each family, and what they cost on texts far from the calibration."""
