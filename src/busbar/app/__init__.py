"""The composition root: configuration is read once here, and here alone concrete stores and gateways are named."""
