"""Define the commands `whiten eval`, `whiten sweep` and `whiten drift`."""
