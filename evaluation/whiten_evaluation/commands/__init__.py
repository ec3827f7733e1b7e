"""Commands of `whiten eval`, `whiten sweep` and `whiten drift`."""
