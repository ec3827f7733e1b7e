"""Commands of `whiten` that need the runtime alone, and what all commands share."""
