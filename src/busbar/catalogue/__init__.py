"""The entities of a namespace, replicated in every store, and the broker that runs them in one process."""
