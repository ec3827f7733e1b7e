"""How much do two bundles in one process slow each other down?"""
