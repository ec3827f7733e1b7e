"""whiten_scale: bulk embedding and fitting in shards, by many processes and machines."""
