"""The composition root: the only room that reads configuration and names concrete stores and gateways."""
