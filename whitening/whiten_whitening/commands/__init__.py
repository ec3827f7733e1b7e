"""Define the command `whiten drift`."""
