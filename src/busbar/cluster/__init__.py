"""Several broker processes that serve one namespace."""
