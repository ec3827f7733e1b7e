"""Compare the speed of whiten with that of other engines on this processor."""
