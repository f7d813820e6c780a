"""The language of rules: SQL filters and actions of subscriptions."""
