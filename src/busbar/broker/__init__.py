"""Runs the fragments of a messaging store: commit loop, outages, timers, dispatch of effects."""
