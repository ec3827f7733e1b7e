"""How fast is whiten beside other engines on this processor?"""
