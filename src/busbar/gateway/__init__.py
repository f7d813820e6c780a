"""The edge: protocols and authorization. Reaches fragments only through the port of `busbar.model.api`."""
