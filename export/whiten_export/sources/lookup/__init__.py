"""Tables of vectors that are looked up and averaged, without a network."""
