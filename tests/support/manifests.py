"""Compare manifests of different versions."""


def contained(old: object, new: object) -> bool:
    """Return whether every field of an older manifest, as read from JSON, has the same value in a newer one."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and contained(value, new[key]) for key, value in old.items())
    return old == new
