"""The edge: protocols and authorization. Reaches fragments only through `busbar.model.api`."""
